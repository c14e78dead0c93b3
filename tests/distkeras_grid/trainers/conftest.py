"""The rows of `small`, as arrays and as DataFrames."""

from __future__ import annotations

import numpy as np
import pytest

from tests.distkeras_grid.trainers.small import CLASSES, ROWS, WIDTH


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    y = (x @ random.normal(size=(WIDTH, CLASSES))).argmax(axis=1)
    return x, y


@pytest.fixture(scope="module")
def frame(spark, arrays):
    import pyarrow as pa

    x, y = arrays
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(y.astype(np.int32))})
    return spark.createDataFrame(table).repartition(3).cache()


@pytest.fixture(scope="module")
def ordered(spark, arrays):
    import pyarrow as pa

    x, y = arrays
    table = pa.table({"features": pa.array(list(x)), "label": pa.array(y.astype(np.int32))})
    return spark.createDataFrame(table).coalesce(1).cache()
