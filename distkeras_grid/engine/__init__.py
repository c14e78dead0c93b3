"""One communication window of mini-batches as one compiled call, for each Keras backend."""
