"""A stream consumes a queue from its front, and what is consumed or expired leaves the directories."""
