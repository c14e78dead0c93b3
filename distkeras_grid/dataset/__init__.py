"""The format of a data set: its manifest, its versions and its folds; no I/O of its own."""
