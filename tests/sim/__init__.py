"""A world of one seed: spaces, sessions, a manager and a database that are killed and cut off wherever dice say so."""
