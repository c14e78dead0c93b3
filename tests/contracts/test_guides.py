"""What README and guides promise: links lead somewhere, commands parse, examples run."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from data_prep.dataset.schema import encode
from distkeras_grid.cli import common_options
from distkeras_grid.cli.verbs import VERBS

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
# Generated pages; `fixtures` has those of data sets that former releases wrote.
SKIPPED = {"build", "demo-report", "fixtures"}


def guides():
    """Every page of the project, relative to its folder."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in SKIPPED and name[0] != "."]
        yield from (Path(folder, name).relative_to(ROOT) for name in files if name.endswith(".md"))


GUIDES = sorted(guides())


def blocks(path, language):
    return [code for found, code in FENCE.findall((ROOT / path).read_text()) if found == language]


def anchors(path):
    """The anchors that GitHub gives a page's headings."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    found = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    # Of equal headings, the second and later ones are numbered.
    counts = [found[:place].count(anchor) for place, anchor in enumerate(found)]
    return {f"{each}-{n}" if n else each for each, n in zip(found, counts, strict=True)}


def broken_links(path):
    """Targets of relative links that are not there, or have no such heading."""
    broken = []
    for link in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.parametrize("path", GUIDES, ids=str)
def test_links_lead_somewhere(path):
    assert broken_links(ROOT / path) == []


def test_a_broken_link_is_seen(tmp_path):
    (tmp_path / "there.md").write_text("# One Heading: of `two`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](there.md#one-heading-of-two)\n"
        "[c](gone.md) [d](there.md#gone) [e](#gone)\n"
        "[f](https://example.org/gone)\n```sh\n[g](gone.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "there.md#gone", "#gone"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_every_guide_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists():
                waiting.append(target)
    assert {ROOT / path for path in GUIDES} - reached == set()


def commands(path):
    """The commands of a page's shell examples, without comments and continued lines."""
    for code in blocks(path, "sh"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["distkeras-grid"]:
                yield words[1:]


def parse(words):
    """Parse a command as the program does; the flags of the job of ``submit``, too."""
    verb, *flags = words
    _, rest = common_options.parse(verb, flags)
    parsed = VERBS[verb].load().build_parser().parse_args(rest)
    if verb == "submit":
        parse([parsed.job, *parsed.arguments])
    return parsed


@pytest.mark.parametrize("path", [path for path in GUIDES if list(commands(path))], ids=str)
def test_commands_are_taken(path):
    for words in commands(path):
        try:
            parse(words)
        except SystemExit:
            pytest.fail(f"distkeras-grid {shlex.join(words)}")


def test_a_misspelt_flag_is_seen():
    with pytest.raises(SystemExit):
        parse(["submit", "tile", "--input", "a", "--output", "b", "--tiles", "3"])


@pytest.mark.parametrize("path", [path for path in GUIDES if blocks(path, "sh")], ids=str)
def test_jobs_and_targets_of_the_examples_are_there(path):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for code in blocks(path, "sh"):
        for name in re.findall(r"jobs/\S+\.py", code):
            assert (ROOT / name).exists(), name
        for target in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE):
            assert target in targets


# -- examples in Python ----------------------------------------------------------------------------


def example(path, beginning):
    """The one example of a page that has a line which begins so."""
    found = [
        code
        for code in blocks(path, "python")
        if any(line.startswith(beginning) for line in code.splitlines())
    ]
    assert len(found) == 1, f"{len(found)} examples of {path} have a line {beginning!r}..."
    return found[0]


def test_the_numbers_of_tiles_are_right(capsys):
    """Those of the example, and what the README says of the default."""
    code = example("data_prep/README.md", "for angles in")
    exec(code, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == re.findall(r"^# (\d+ \d+)$", code, re.MULTILINE)
    text = " ".join((ROOT / "README.md").read_text().split())
    one, eight, all_angles = (int(line.split()[1]) for line in printed)
    assert f"{one:,} tiles at one angle, {eight:,} at 8 and {all_angles:,} at 72" in text
    sizes = [round(tiles * 256**2 / 1e6) for tiles in (one, eight, all_angles)]
    assert "{}, {} and {} MB of pixels".format(*sizes) in text


@pytest.mark.parametrize("encoding", ["raw", "difference"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_other_programs_get_the_pixels(encoding, dtype):
    names = {}
    exec(example("data_prep/README.md", "def pixels("), names)
    shape = (5, 4, 3)
    image = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    row = dict(zip(("height", "width", "channels"), shape, strict=True))
    row |= {"image": encode(image, encoding, 90), "encoding": encoding, "dtype": image.dtype.name}
    np.testing.assert_array_equal(names["pixels"](row), image)


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.notebook
@pytest.mark.full
def test_the_notebook_of_the_readme_runs(spark, samples, tmp_path, monkeypatch):
    from data_prep import TileSpec, TilingSettings, tile_images

    (tmp_path / "my_models.py").write_text(example("README.md", "def net("))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    spec = TileSpec(256, overlap=0, angles=(0,))
    tile_images(
        TilingSettings(str(samples), str(tmp_path / "tiles"), spec, split="0.6:0.2:0.2"),
        spark=spark,
    )
    code = example("README.md", "train, validation, test")
    names = {}
    # Spark's JVM has a working directory of its own.
    for path in ("tiles", "runs/second"):
        code = code.replace(f'("{path}"', f'("{tmp_path}/{path}"')
    exec(code, names)
    assert len(names["trainer"].history.history["val_accuracy"]) == 5
    assert (tmp_path / "runs" / "second" / "run.json").exists()


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.tensorflow
def test_the_example_of_several_inputs_runs(spark):
    import keras

    rng = np.random.default_rng(0)
    rows = [
        (
            rng.uniform(size=4).tolist(),
            [int(word) for word in rng.integers(0, 9, 3)],
            int(rng.integers(0, 2)),
            float(rng.uniform()),
        )
        for _ in range(64)
    ]
    schema = "image array<float>, word_ids array<int>, label int, years float"
    photo = keras.Input((4,), name="photo")
    words = keras.Input((3,), dtype="int32", name="words")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(9, 2)(words))
    joined = keras.layers.Concatenate()([photo, embedded])
    kind = keras.layers.Dense(2, activation="softmax", name="kind")(joined)
    age = keras.layers.Dense(1, name="age")(joined)
    model = keras.Model({"photo": photo, "words": words}, {"kind": kind, "age": age})
    model.compile("adam")
    names = {"model": model, "rows": spark.createDataFrame(rows, schema)}
    exec(example("distkeras_grid/trainers/README.md", "trained = trainer.train(rows)"), names)
    assert {"prediction_kind", "prediction_age"} <= set(names["predicted"].columns)
    assert "age_loss" in names["trainer"].history.history


@pytest.fixture
def model():
    import keras

    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return net


@pytest.mark.tensorflow
def test_the_example_of_a_falling_rate_runs(model):
    names = {"model": model, "steps": 100}
    exec(example("distkeras_grid/trainers/README.md", "schedule = "), names)
    assert type(names["trainer"]).__name__ == "DynSGD"


@pytest.mark.tensorflow
def test_the_simulated_cluster_runs(model):
    rng = np.random.default_rng(0)
    names = {"model": model}
    for name, rows in {"": 640, "_validation": 32}.items():
        names[f"x{name}"] = rng.uniform(size=(rows, 3)).astype(np.float32)
        names[f"y{name}"] = rng.integers(0, 2, rows)
    exec(example("distkeras_grid/trainers/README.md", "cluster = Cluster("), names)
    assert len(names["run"].history.history["val_accuracy"]) == 3


@pytest.mark.parametrize("path", [path for path in GUIDES if blocks(path, "python")], ids=str)
def test_examples_compile_and_what_they_import_is_public(path):
    for code in blocks(path, "python"):
        compile(code, str(path), "exec")
        for module, names in re.findall(
            r"^from (distkeras_grid|data_prep) import (.*)$", code, re.M
        ):
            public = importlib.import_module(module)
            for name in names.split(", "):
                # A name is an attribute or a submodule, which may not be imported yet.
                assert hasattr(public, name) or importlib.import_module(f"{module}.{name}"), name


def test_the_files_that_the_code_guide_names_are_there():
    package = ROOT / "distkeras_grid"
    text = (package / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    folders = [ROOT, package, package / "parameter_server"]
    missing = [name for name in named if not any((folder / name).exists() for folder in folders)]
    assert missing == []
    assert len(named) > 20
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))))
    packages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert listed == packages
