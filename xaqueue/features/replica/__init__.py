"""A replica: a copy of a space on another disk, which follows its journal, and may take its place."""
