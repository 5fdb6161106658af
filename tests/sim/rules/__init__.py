"""What each feature adds to the world: its lines of queues.toml, its verbs, and its part of the model.

``plain`` is a queue without any policy; ``work`` has those of all rules of a run. Which rules a run has is drawn.
"""
