"""Queue, transactions and recovery: what everybody must know, and nothing else."""
