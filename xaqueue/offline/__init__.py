"""Looking at a space without owning it."""
