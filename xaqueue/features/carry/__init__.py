"""A database has a change of the space in its log until the space's own record of it is on disk."""
