"""Pictures of one place are found, whatever was done to them; pictures of two places are not."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from data_prep.images.open_image import decode_image
from data_prep.splits import candidate_search, near_duplicates
from data_prep.splits.candidate_search import LINKS
from data_prep.splits.fingerprint import HEADER, THUMBNAIL, burned_in, fingerprint, parse
from data_prep.splits.near_duplicates import MOST_IN_VAIN, find_near_duplicates
from distkeras_grid.errors import DataError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def micrographs(samples):
    paths = sorted(samples.glob("class*/*.png"))[::4]
    return [decode_image(path.read_bytes(), path.name) for path in paths]


def pairs(*pictures):
    prints = {f"{i}": fingerprint(picture) for i, picture in enumerate(pictures)}
    return [(found.one, found.other) for found in find_near_duplicates(prints).pairs]


def resized(pixels, factor):
    return cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)[:, :, None]


def as_jpeg(pixels, quality):
    content = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)[:, :, None]


def fields(pixels, shared):
    """Two neighbouring fields of view that share a part of their width."""
    width = pixels.shape[1]
    field = round(width / (2 - shared))
    return pixels[:, :field], pixels[:, width - field :]


# The part of pairs that must be found; scripts over 330 micrographs found these parts and more.
@pytest.mark.parametrize(
    ("change", "least"),
    [
        (lambda p: (p, as_jpeg(p, 20)), 1.0),
        (lambda p: (p, np.clip(p * 1.2 + 10, 0, 255).astype(np.uint8)), 1.0),
        (lambda p: (p, p.astype(np.uint16) * 200), 1.0),
        (lambda p: (p, p.repeat(3, axis=2)), 1.0),
        (lambda p: (p, np.rot90(p)), 0.9),
        (lambda p: (p, resized(p, 0.5)), 0.9),
        (lambda p: (p, as_jpeg(resized(p, 0.7), 60)), 0.9),
        (lambda p: (p, p[: int(p.shape[0] * 0.7), int(p.shape[1] * 0.3) :]), 0.8),
        (lambda p: fields(p, 0.5), 0.8),
    ],
    ids=["jpeg", "bright", "16 bits", "colour", "turned", "half", "0.7 jpeg", "crop", "fields"],
)
@pytest.mark.full
def test_what_was_done_to_a_picture(micrographs, change, least):
    every = [np.ascontiguousarray(each) for picture in micrographs for each in change(picture)]
    found = pairs(*every)
    right = {(f"{i}", f"{i + 1}") for i in range(0, len(every), 2)}
    assert {tuple(sorted(pair, key=int)) for pair in found} <= right
    assert len(found) >= least * len(right)


def with_bar(pixels, text="0.5 mm"):
    """Burn a scale bar in a white box into the lower right corner."""
    height, width = pixels.shape[:2]
    drawn = pixels[:, :, 0].copy()
    box = drawn[height - height // 4 :, width // 3 :]
    box[:] = 255
    cv2.putText(box, text, (10, 35), cv2.FONT_HERSHEY_SIMPLEX, 1.2, 0, 2)
    cv2.putText(box, "15 kV x200", (150, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.8, 0, 1)
    cv2.putText(box, "SE 2026-11-22", (100, 78), cv2.FONT_HERSHEY_SIMPLEX, 0.7, 0, 1)
    box[-30:-22, 10:290] = 0
    return drawn[:, :, None]


def test_a_burned_in_scale_bar_joins_nothing(micrographs):
    assert pairs(*map(with_bar, micrographs)) == []
    bar = burned_in(with_bar(micrographs[0])[:, :, 0])
    height, width = bar.shape
    assert bar[height - height // 4 + 2 :, width // 3 + 2 :].mean() > 0.95
    assert bar[: height // 2].mean() < 0.1


@pytest.mark.full
def test_a_scale_bar_does_not_hide_a_copy(micrographs):
    every = [each for picture in micrographs for each in (picture, with_bar(picture))]
    assert len(pairs(*every)) >= 0.9 * len(micrographs)


def test_pictures_in_which_nothing_can_be_seen_join_nothing():
    rng = np.random.default_rng(1)
    y, x = np.mgrid[-1:1:300j, -1:1:400j]
    lamp = 150 - 60 * (x * x + y * y)
    noisy = [lamp + rng.normal(0, 3, lamp.shape) for _ in range(6)]
    plain = [np.full((300, 400), value) for value in (0, 128, 255)]
    pictures = [each.clip(0, 255).astype(np.uint8)[:, :, None] for each in [*noisy, *plain]]
    assert pairs(*pictures) == []


def test_of_a_night_only_pairs_with_a_new_picture_are_looked_at(micrographs):
    first, second = micrographs[:2]
    prints = {
        name: fingerprint(picture)
        for name, picture in {
            "a": first,
            "b": resized(first, 0.8),
            "c": second,
            "d": resized(second, 0.8),
        }.items()
    }
    found = find_near_duplicates(prints, new={"d"}).pairs
    assert [(each.one, each.other) for each in found] == [("c", "d")]
    assert "scale 0.80" in found[0].why
    assert find_near_duplicates(prints, new=set()).pairs == []
    assert find_near_duplicates({}).pairs == []
    names = {"2.png": "a", "1.png": "b", "gone.png": "z"}
    (pair,) = find_near_duplicates(prints, new={"a"}, names=names).pairs
    assert (pair.one, pair.other) == ("1.png", "2.png")
    assert find_near_duplicates({**prints, "b": b""}, names=names).pairs == []
    assert find_near_duplicates(prints, None, [("1.png", "2.png")], names).pairs == []


def synthetic(seed, features=40, like=None, noise=0):
    """The fingerprint of a picture that nobody has taken."""
    rng = np.random.default_rng(seed)
    descriptors = rng.integers(0, 256, (features, 32), np.uint8) if like is None else like.copy()
    for bit in rng.integers(0, 256, noise):
        descriptors[:, bit >> 3] ^= np.uint8(1 << (bit & 7))
    points = np.random.default_rng(1).integers(0, 65536, (features, 2)).astype("<u2")
    header = HEADER.pack(1, 0, features, 600, 600) + bytes(8)
    return header + points.tobytes() + descriptors.tobytes(), descriptors


def look_alike(seed):
    """The fingerprint of a picture without features whose hash is that of many others."""
    rng = np.random.default_rng(seed)
    header = HEADER.pack(1, 1, 0, 600, 600) + (1 << int(rng.integers(64))).to_bytes(8, "little")
    return header + rng.bytes(THUMBNAIL**2)


def components(names, found):
    """How many separate sets the pairs leave."""
    sets = {name: {name} for name in names}
    for each in found:
        both = sets[each.one] | sets[each.other]
        sets |= dict.fromkeys(both, both)
    return len({id(each) for each in sets.values()})


@pytest.mark.parametrize("count", [30, 200])
def test_a_series_of_any_length_is_joined_by_few_pairs(count):
    """All pairs were compared, the square of any number; and of more than 32 frames none."""
    _, place = synthetic(0)
    frames = {f"{i:03}": synthetic(100 + i, like=place, noise=3)[0] for i in range(count)}
    others = {f"{i:03}x": synthetic(1000 + i)[0] for i in range(0, count, 2)}
    found = find_near_duplicates({**frames, **others}).pairs
    assert {each.one for each in found} | {each.other for each in found} == set(frames)
    assert count - 1 <= len(found) <= LINKS * count
    assert components(frames, found) == 1
    # One that is replaced later does not part the others.
    for gone in list(frames)[:: count // 30]:
        left = [each for each in found if gone not in (each.one, each.other)]
        assert components([name for name in frames if name != gone], left) == 1
    known = [(each.one, each.other) for each in found]
    for new in ("0000", "0999", "1999"):
        more = {**frames, **others, new: synthetic(2000, like=place, noise=3)[0]}
        links = find_near_duplicates(more, {new}, known).pairs
        assert 0 < len(links) <= LINKS
        assert {new in (each.one, each.other) for each in links} == {True}


@pytest.fixture
def compared(monkeypatch):
    """The pairs that are compared."""
    compared = []
    compare = near_duplicates.compare

    def counting(*pictures):
        compared.append(pictures)
        return compare(*pictures)

    monkeypatch.setattr(near_duplicates, "compare", counting)
    return compared


def drawn_in(part):
    """Pictures in which parts of one drawing are."""
    _, drawn = synthetic(0, features=12)
    prints = {}
    for i in range(400):
        rng = np.random.default_rng(i + 1)
        _, descriptors = synthetic(i + 1)
        has = np.flatnonzero(rng.random(len(drawn)) < part)
        descriptors[has] = drawn[has]
        prints[f"{i:03}"] = synthetic(0, like=descriptors)[0]
    return prints


def drawn_beside_a_hash():
    """Pictures with a drawing, and with thumbnails of one hash."""
    prints = {}
    for name, content in list(drawn_in(1.0).items())[:60]:
        thumbnail = np.random.default_rng(int(name)).bytes(THUMBNAIL**2)
        header = HEADER.pack(1, 1, 40, 600, 600) + bytes(8)
        prints[name] = header + thumbnail + content[HEADER.size + 8 :]
    return prints


# What pictures have in common, and how often each may be compared. Formerly all pairs with one band
# of a hash in common were compared, and after a hash the features of the drawing were enough.
COMMON = {
    "a drawing": (lambda: drawn_in(1.0), LINKS),
    "parts of a drawing": (lambda: drawn_in(0.5), LINKS),
    "like hashes": (lambda: {f"{i:03}": look_alike(i) for i in range(300)}, MOST_IN_VAIN),
    "a hash and a drawing": (drawn_beside_a_hash, MOST_IN_VAIN),
}


@pytest.mark.parametrize(("make", "most"), COMMON.values(), ids=COMMON)
def test_what_all_pictures_have_in_common_joins_none_and_costs_few_comparisons(
    compared, make, most
):
    prints = make()
    assert find_near_duplicates(prints).pairs == []
    assert 0 < len(compared) <= most * len(prints)


def noisily_drawn(count, variants=16):
    """Fingerprints of pictures with a common drawing, of whose features noise makes variants."""
    drawn = np.random.default_rng(0).integers(0, 256, (variants, 24, 32), np.uint8)
    prints = {}
    for i in range(count):
        chosen = np.random.default_rng(i + 1).integers(0, variants, drawn.shape[1])
        _, descriptors = synthetic(i + 1)
        descriptors[: drawn.shape[1]] = drawn[chosen, np.arange(drawn.shape[1])]
        prints[f"{i:03}"] = synthetic(0, like=descriptors)[0], descriptors
    return prints


def test_a_drawing_with_noise_costs_a_number_of_comparisons_for_each_picture(compared):
    """Groups of up to 32 pictures shared a variant, so nearly every pair was compared."""
    made = noisily_drawn(300)
    prints = {name: content for name, (content, _) in made.items()}
    search = find_near_duplicates(prints)
    assert search.pairs == []
    assert len(compared) <= MOST_IN_VAIN * len(prints)
    assert set(search.cut_short) <= set(prints)
    assert len(search.cut_short) > len(prints) / 2
    # One copy of each tenth picture: they have most features in common, so they come first.
    copies = {
        f"{name}x": synthetic(0, like=descriptors, noise=3)[0]
        for name, (_, descriptors) in list(made.items())[::10]
    }
    found = find_near_duplicates({**prints, **copies}).pairs
    assert {(name[:-1], name) for name in copies} <= {(each.one, each.other) for each in found}


def test_pictures_of_which_pairs_were_not_held_are_named_if_they_have_few_links(monkeypatch):
    monkeypatch.setattr(candidate_search, "MOST_PAIRS", 0)
    monkeypatch.setattr(candidate_search, "BEST_OF_EACH", 4)
    made = noisily_drawn(200)
    prints = {name: content for name, (content, _) in made.items()}
    copies = {
        f"{name}x{i}": synthetic(i, like=made[name][1], noise=3)[0]
        for name in ("000", "100")
        for i in range(LINKS)
    }
    search = find_near_duplicates({**prints, **copies})
    assert {pair.one[:3] for pair in search.pairs} == {"000", "100"}
    assert len(search.pairs) == 2 * LINKS * (LINKS + 1) // 2
    assert set(search.cut_short) == set(prints) - {"000", "100"}


def test_a_new_picture_with_a_noisy_drawing_is_compared_with_a_number_of_the_old_ones(compared):
    prints = {name: content for name, (content, _) in noisily_drawn(300).items()}
    search = find_near_duplicates(prints, {"150"})
    assert (search.pairs, search.cut_short) == ([], ["150"])
    assert len(compared) == MOST_IN_VAIN


def test_a_link_that_is_known_is_not_made_again():
    _, place = synthetic(0)
    prints = {name: synthetic(i, like=place, noise=3)[0] for i, name in enumerate("abc")}
    found = find_near_duplicates(prints, known=[("a", "b")]).pairs
    assert [(pair.one, pair.other) for pair in found] == [("a", "c"), ("b", "c")]


def test_a_fingerprint_is_small_and_says_when_it_is_damaged(micrographs):
    content = fingerprint(micrographs[0])
    assert len(content) < 8000
    assert fingerprint(micrographs[0]) == content
    whole = parse(content)
    assert (whole.height, whole.width, 1) == micrographs[0].shape
    assert abs(float(whole.thumbnail.mean())) < 1e-3
    for damaged in (b"", content[:-1], content + b"x", b"\xff" + content[1:]):
        with pytest.raises(DataError):
            parse(damaged)
