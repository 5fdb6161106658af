"""What several tests share: scenes, stories, judges, models, and the programs of child processes."""

from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parent.parent
"""Of the repository."""
