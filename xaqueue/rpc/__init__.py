"""A queue space over a socket: MessagePack-RPC, a server that owns the space, and clients with the same connection."""
