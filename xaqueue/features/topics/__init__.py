"""One message in several queues, and several messages in one call."""
