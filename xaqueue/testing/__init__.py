"""For the tests of those who use xaqueue: a space in memory, and a power loss at any call."""
