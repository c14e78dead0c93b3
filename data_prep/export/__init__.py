"""Copies of a data set for other programs: PNG folders, Hugging Face."""
