"""The report of a data set."""
