"""The server: one process has a space, and serves it to many sessions."""
