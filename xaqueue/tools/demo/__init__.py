"""One real job from end to end: flights go in under fire, Spark takes them out, and every one is counted."""
