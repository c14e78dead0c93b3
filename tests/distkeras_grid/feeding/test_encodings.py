import sys

import numpy as np
import pytest

from distkeras_grid.errors import EnvironmentMismatchError
from distkeras_grid.feeding.encodings import ENCODED, decode
from distkeras_grid.feeding.schema import Field


@pytest.mark.parametrize("encoding", ENCODED)
def test_every_encoding_names_a_function_that_gives_no_rows_for_none(encoding):
    recipe = '{"interpolation": "cubic", "edge": "drop", "choice": {}}'
    field = Field("image", (4, 4, 1), encoding=encoding, recipe=recipe)
    values = decode([], field)
    assert (values.shape, values.dtype) == ((0, 4, 4, 1), np.uint8)


def test_a_host_without_the_decoder_is_told_what_is_missing(monkeypatch):
    module = ENCODED["tile"].decode.partition(":")[0]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvironmentMismatchError, match=module):
        decode([], Field("image", (4, 4, 1), encoding="tile"))
