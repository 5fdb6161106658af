"""What a space does beside that: a folder each."""
