"""Two machines and one directory: one owns it, the other one waits."""
