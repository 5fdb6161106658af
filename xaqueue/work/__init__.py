"""Workers and forwarders: loops that take messages, each in a transaction, until they are stopped."""
