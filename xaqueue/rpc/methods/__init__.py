"""The methods of the protocol, by subject: what the server does for each, and how a client calls it."""
