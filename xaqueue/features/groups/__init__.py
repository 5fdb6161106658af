"""Of a group of messages one after the other is delivered."""
