"""What each queue has had and lost."""
