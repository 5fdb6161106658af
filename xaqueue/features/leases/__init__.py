"""A message is received on lease, and settled by its receipt."""
