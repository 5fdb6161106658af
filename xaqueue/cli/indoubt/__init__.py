"""Branches in doubt, shown and finished without their transaction manager."""
