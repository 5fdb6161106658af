"""What a block, a queue, a branch, a name and a change are."""
