"""Model parallelism: one model over several devices, where data parallelism does not fit."""

#: Trainers of this package that take one model, as the others do.
MODEL_TRAINERS = ("ConvolutionSplit", "PlacedLayers")
