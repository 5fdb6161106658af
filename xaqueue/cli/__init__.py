"""The command line: an edge that translates words into calls of the engine, and errors into one line and a code."""
