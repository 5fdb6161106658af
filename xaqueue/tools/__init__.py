"""What is tried with a space and shown of it: iotest and the demo."""
