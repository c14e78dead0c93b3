"""The verbs of the command line that make and change data sets, one file each."""
