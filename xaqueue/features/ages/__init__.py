"""How long a message may stay in a queue."""
