"""What is tried with a space and shown of it: iotest, the rates of one's own machine, and the demo."""
