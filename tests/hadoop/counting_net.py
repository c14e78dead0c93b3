"""A net that counts, for ``--model counting_net:build``: each weight tells how often its row came.

An embedding with one weight per row and labels far above all weights: the gradient of the mean
absolute error is -1 / batch, so with SGD at the rate `BATCH` each visit of a row adds exactly 1.
"""

from __future__ import annotations

ROWS, BATCH, LABEL = 600, 4, 1_000_000


def build():
    import keras

    layers = [
        keras.Input((1,)),
        keras.layers.Embedding(ROWS, 1, embeddings_initializer="zeros"),
        keras.layers.Flatten(),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(float(BATCH)), loss="mae")
    return model


def build_and_linger():
    """Build the net, and let the driver's program wait when its work is done, to be killed then."""
    import atexit
    import threading

    atexit.register(threading.Event().wait, 300)
    return build()
