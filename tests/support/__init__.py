"""What several tests share: scenes, stories, judges, models, and the programs of child processes."""
