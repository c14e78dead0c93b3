from data_prep.geometry import TileSpec, count_tiles
from data_prep.images import decode_image


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
