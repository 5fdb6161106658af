"""Of two messages with one key only the first counts, for as long as its queue remembers."""
