"""One process has the directory: opening, threads, I/O watchdog, watches."""
