"""The resource manager over directories."""
