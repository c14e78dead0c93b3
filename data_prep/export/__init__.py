"""Copies of a data set for other programs: PNG folders, WebDataset, TFRecord, Hugging Face."""
