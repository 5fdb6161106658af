"""Snapshots of a space: taken while it works, looked at, and put back in its place."""
