"""Queues as a source: planned by numbers, read as files, consumed through the owner of the space."""
