"""The command line: ``distkeras-grid tile | train | predict | evaluate``."""
