"""How much a queue may hold."""
