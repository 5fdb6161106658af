"""What a branch did since a mark is undone, and it goes on."""
