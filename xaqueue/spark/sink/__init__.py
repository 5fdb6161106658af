"""Queues as a sink: tasks prepare branches, and the driver commits a batch by one decision."""
