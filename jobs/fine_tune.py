"""A new head on a net of keras.applications whose own weights stay as they are.

The frozen net travels to the executors once, with the model; exchanges carry the head alone.
"""

from __future__ import annotations

import argparse
import inspect
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

# For what this process evaluates; workers have it, too.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from distkeras_grid.cli import train
from distkeras_grid.cli.common_options import run
from distkeras_grid.cli.exit_codes import exit_codes_help, run_command
from distkeras_grid.cli.trainer_options import parse_settings
from distkeras_grid.engine.keras_model import weight_layout
from distkeras_grid.errors import ConfigurationError

if TYPE_CHECKING:
    from distkeras_grid.feeding.schema import Field
    from distkeras_grid.spark.storage import Storage

# What the net sees for pixels of 0 to 1: their factor, and what is added.
PIXELS = {"signed": (2.0, -1.0), "unit": (1.0, 0.0), "bytes": (255.0, 0.0)}
RANDOM = "random"

EXAMPLES = """\
examples:
  distkeras-grid tile --input images --output tiles --tile 128
  python jobs/fine_tune.py --data tiles --net MobileNetV2 \\
      --weights mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_128_no_top.h5 \\
      --epochs 5 --output runs/fine
  spark-submit --master yarn jobs/fine_tune.py --data hdfs:///tiles --net MobileNetV2 \\
      --weights hdfs:///weights/net.weights.h5 --set optimizer_state=reset \\
      --output hdfs:///runs/fine

"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: that of ``train``, with a net in place of a model."""
    parser = train.build_parser(names_model=False)
    parser.prog = "fine_tune.py"
    parser.description = __doc__
    parser.epilog = EXAMPLES + exit_codes_help()
    parser.set_defaults(features="image", split="train", validation_split="validation")
    add = parser.add_argument
    add("--net", required=True, metavar="NAME", help="of keras.applications, such as MobileNetV2")
    add(
        "--weights",
        required=True,
        metavar="FILE",
        help="the net's weights without its top, .h5 or .weights.h5 on any Hadoop path; imagenet "
        f"lets Keras download its own; {RANDOM} is for trials",
    )
    add(
        "--net-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other argument of the net, such as alpha=0.35; may be repeated",
    )
    add(
        "--pixels",
        choices=tuple(PIXELS),
        default="signed",
        help="what the net was trained on: -1 to 1 (MobileNetV2, Xception, InceptionV3, NASNet, "
        "ResNetV2: signed, the default), 0 to 1 (unit) or 0 to 255 (EfficientNet, MobileNetV3, "
        "ConvNeXt: bytes)",
    )
    return parser


def build_model(flags: argparse.Namespace, storage: Storage, features: Field | None) -> keras.Model:
    """Return a frozen net with a new head, compiled, and tell what of it travels.

    Parameters
    ----------
    flags : argparse.Namespace
        What `build_parser` parses.
    storage : Storage
        Reads the file of weights.
    features : Field or None
        Images of shape ``(height, width, channels)``, as the model sees them from 0 to 1, and
        their classes; one channel is given to the net three times.

    Raises
    ------
    ConfigurationError
        If the column holds no such images, or Keras cannot build the net.
    """
    if features is None:
        raise ConfigurationError(
            f"--features names one column of images here. Received: {flags.features!r}."
        )
    if len(features.shape) != 3 or features.shape[-1] not in (1, 3) or not features.classes:
        raise ConfigurationError(
            f"column {features.name!r} must hold images of 1 or 3 channels, with the names of "
            f"their classes, as tile and ingest write them. Received: shape {features.shape}, "
            f"classes {features.classes}."
        )
    if features.dtype != "uint8" or not np.allclose(features.scaling, (1 / 255, 0)):
        raise ConfigurationError(
            f"column {features.name!r} must hold bytes that the model sees from 0 to 1, as tile "
            "and ingest write them without --standardise: the net was trained on pixels. Received: "
            f"{features.dtype}, times {features.scale:g} plus {features.offset:g}."
        )
    base = load_base(flags, storage, (*features.shape[:2], 3))
    base.trainable = False
    inputs = keras.Input(features.shape)
    factor, offset = PIXELS[flags.pixels]
    pixels = keras.layers.Rescaling(factor, offset)(inputs)
    if features.shape[-1] == 1:
        pixels = keras.layers.Concatenate()([pixels] * 3)
    outputs = keras.layers.Dense(len(features.classes), activation="softmax", name="head")
    model = keras.Model(inputs, outputs(base(pixels)), name=f"fine_tuned_{flags.net}")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    size, every = weight_layout(model).size, int(model.count_params())
    print(
        f"{flags.net}: {every} weights, {size} of them train: {size * 4 / 1e3:.1f} kB an exchange "
        f"in place of {every * 4 / 1e3:.1f} kB",
        flush=True,
    )
    return model


def load_base(
    flags: argparse.Namespace, storage: Storage, shape: tuple[int, int, int]
) -> keras.Model:
    """Return the net without its top, with the weights that ``--weights`` names.

    Raises
    ------
    ConfigurationError
        If there is no such net, or the weights are not its own.
    """
    nets = {name: net for name, net in vars(keras.applications).items() if inspect.isfunction(net)}
    if flags.net not in nets:
        raise ConfigurationError(
            f"keras.applications has no net {flags.net!r}. It has {', '.join(sorted(nets))}."
        )
    build = partial(nets[flags.net], include_top=False, pooling="avg", input_shape=shape)
    options: dict[str, Any] = parse_settings(flags.net_set)
    with tempfile.TemporaryDirectory(prefix="dkg-weights-") as folder:
        weights = {RANDOM: None, "imagenet": "imagenet"}.get(flags.weights, flags.weights)
        if weights not in (None, "imagenet"):
            # Keras reads local files only, and goes by their names.
            local = Path(folder) / weights.rpartition("/")[2]
            local.write_bytes(storage.read_bytes(weights))
            weights = str(local)
        try:
            return build(weights=weights, **options)
        except (OSError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"Keras cannot build {flags.net} of {shape} with --weights {flags.weights} and "
                f"{options or 'no options'}: {error}."
            ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit code."""
    flags = build_parser().parse_args(argv)
    return run_command(lambda: train.train(flags, partial(build_model, flags)))


if __name__ == "__main__":
    sys.exit(run("fine_tune", main, sys.argv[1:]))
