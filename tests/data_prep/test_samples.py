import numpy as np
from numpy.typing import NDArray

from data_prep.geometry.grid import TileSpec
from data_prep.geometry.tile_layout import count_tiles
from data_prep.images.open_image import decode_image

# A scale bar of the source lies in a white box, 255 to 320 pixels long; the frame around some of
# its pictures is a black or white line along a whole edge. In rock, white grains end after 100.
LONGEST_LINE = 128


def longest_line(pixels: NDArray[np.uint8]) -> int:
    """Return the length of the longest straight line of white or of black pixels."""
    longest = 0
    for mask in (pixels >= 250, pixels <= 8):
        for lines in (mask, mask.T):
            fenced = np.pad(lines, ((0, 0), (1, 1))).astype(np.int8)
            ends = np.flatnonzero(np.diff(fenced.ravel()))  # where a line begins, where it ends
            longest = max([longest, *(ends[1::2] - ends[::2]).tolist()])
    return longest


def test_samples_are_small_gray_and_balanced(samples):
    files = sorted(samples.glob("*/*.png"))
    assert len(files) == 60
    assert {path.parent.name for path in files} == {"class0", "class1", "class2"}
    assert sum(path.stat().st_size for path in samples.rglob("*")) < 5_000_000
    assert (samples / "LICENSE").read_text().lstrip().startswith("Apache License")
    contents = [path.read_bytes() for path in files]
    assert len(set(contents)) == 60
    for path, content in zip(files, contents, strict=True):
        height, width, channels = decode_image(content, path.name).shape
        assert channels == 1
        assert count_tiles(width, height, TileSpec(128)) > 0
    for label in ("class0", "class1", "class2"):
        assert sum(path.parent.name == label for path in files) == 20


def test_no_sample_shows_a_scale_bar_or_a_frame(samples):
    """A net could read the class from them in place of the rock."""
    burned_in = np.random.default_rng(0).integers(20, 240, (261, 358), dtype=np.uint8)
    burned_in[200:212, 60:200] = 255
    assert longest_line(burned_in) == longest_line(255 - burned_in.T) == 140
    marked = {
        path.name: longest_line(decode_image(path.read_bytes(), path.name)[..., 0])
        for path in sorted(samples.glob("*/*.png"))
    }
    assert {name: length for name, length in marked.items() if length > LONGEST_LINE} == {}
