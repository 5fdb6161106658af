"""Measurements that belong to the product: what this machine and this disk give, and how much of it the engine uses."""
