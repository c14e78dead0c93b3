"""The command line: ``distkeras-grid VERB ...``; `main` has the list of verbs."""
