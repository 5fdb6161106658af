"""What an open space is defined by is changed: queues.toml, and what holds."""
