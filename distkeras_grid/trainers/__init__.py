"""The trainers, and the run that connects driver, server and workers."""

#: Every trainer by its public name; `distkeras_grid` exports them all.
TRAINERS = (
    "SingleTrainer",
    "DOWNPOUR",
    "ADAG",
    "StalenessADAG",
    "DynSGD",
    "GEM",
    "AEASGD",
    "EAMSGD",
    "EASGD",
    "AveragingTrainer",
    "SynchronousSGD",
    "EnsembleTrainer",
)
