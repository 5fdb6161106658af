"""What an open does: from the journal to the directories, and from the directories to the state."""
