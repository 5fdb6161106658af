"""The state of a space behind one lock, and the steps on it."""
