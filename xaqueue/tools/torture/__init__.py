"""Whether an engine and a mount keep their promises: work that is killed, and power that is lost by the rules."""
