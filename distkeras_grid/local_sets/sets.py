"""What a user asks for: training on local sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, get_args

from distkeras_grid.errors import ConfigurationError
from distkeras_grid.rules.parameters import checked_whole
from distkeras_grid.spec import LocalSpec, TestImages


@dataclass(frozen=True)
class LocalSets:
    """Data of a run in which each worker draws its own tiles for each iteration, and reads them.

    For `Trainer.train`.

    Kurochkin, "The Deep Distributed Learning Implementations with a Large Dataset on the Desktop
    Grid", GRID'2021. In each iteration a worker draws a random training set and a random test set,
    both balanced over the classes. It reads the tiles by itself, from the data set or from a mirror
    of it: the driver sends where tiles lie, and the parameter server sends none. It trains on one
    set, tests its own model on the other, and sends its weights.

    A draw depends only on the seed, the iteration and the worker. An epoch of the run is an
    iteration: callbacks, validation and the history count iterations as epochs.

    Parameters
    ----------
    data : str or DataFrame
        Path of a Parquet data set, or a DataFrame of its rows (filtered or joined, but not moved).
        The workers also cut tiles of a stored index (`data_prep.cut`).
    iterations : int
        Number of iterations; each worker draws once in each.
    local_train : int
        Number of tiles in a training set.
    local_test : int, default 0
        Number of tiles in a test set; 0 for no local tests.
    test_images : {"held_out", "others"}, default "held_out"
        "held_out": test tiles come from `test_split`, so from images that no worker trains on.
        "others", the protocol of the paper: they come from images of `split` that this worker's
        current training set does not use. Other workers, or the same one in another iteration,
        may have trained on them, so the results of these tests are too good.
    split : str or None, default "train"
        Split of the training tiles; None for all rows.
    test_split : str, default "validation"
        Split of the held-out tiles.
    mirrors : sequence of str, default ()
        Locations with copies of the data set's folder, which workers read in its place: paths,
        ``hdfs:``, ``webhdfs:``, ``http:`` or ``https:``. Each worker spreads its reads over them.
        If one fails or sends other bytes (by their SHA-256), the next one is asked.

    Raises
    ------
    ConfigurationError
        If a value is out of its range.

    Examples
    --------
    The run of the paper, in one call:

    >>> sets = LocalSets("hdfs:///tiles", iterations=18, local_train=6000, local_test=2700)
    >>> AveragingTrainer(
    ...     model, num_workers=5, quorum=0.8, features_col="image"
    ... ).train(sets)                                                    # doctest: +SKIP
    """

    data: Any
    _: KW_ONLY
    iterations: int
    local_train: int
    local_test: int = 0
    test_images: TestImages = "held_out"
    split: str | None = "train"
    test_split: str = "validation"
    # Not in the repr: they may contain passwords.
    mirrors: Sequence[str] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        # Wrong values are refused here, not after the data have been read.
        held_out = self.spec.test_images == "held_out"
        checked_whole("iterations", self.iterations, least=1)
        if isinstance(self.mirrors, str) or not all(isinstance(each, str) for each in self.mirrors):
            raise ConfigurationError(
                f"mirrors must be a list of locations. Received: {self.mirrors!r}."
            )
        if self.local_test and held_out and self.split in (None, self.test_split):
            raise ConfigurationError(
                "split and test_split must differ, so that no test tile is from an image that is "
                f"trained on. Received: {self.split!r} and {self.test_split!r}. Give two, or "
                "test_images='others'."
            )

    @property
    def spec(self) -> LocalSpec:
        """The recipe of the sets."""
        if self.test_images not in get_args(TestImages):
            raise ConfigurationError(
                f"test_images is one of {', '.join(map(repr, get_args(TestImages)))}. Received: "
                f"{self.test_images!r}."
            )
        return LocalSpec(
            local_train=checked_whole("local_train", self.local_train, least=1),
            local_test=checked_whole("local_test", self.local_test, least=0),
            test_images=self.test_images,
        )
