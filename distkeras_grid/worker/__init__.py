"""What an executor runs: the training loop and the one function shipped to Spark."""
