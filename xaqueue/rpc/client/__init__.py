"""A client of a server: its session, its socket, and how it connects."""
