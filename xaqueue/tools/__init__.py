"""What is tried with a space and shown of it: iotest, torture and the demo."""
