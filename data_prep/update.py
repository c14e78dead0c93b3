"""``tile --update``: adds to a data set of tiles what has changed in the folder of images.

New images are tiled into a shard of their own, a folder ``shard=N`` that appears whole. Changed
ones replace their tiles and keep their split. What cannot be read is listed, and tried again next
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from data_prep.alike import alike_among, describe, still_true, to_json
from data_prep.changes import (
    Changes,
    Listed,
    compare,
    contents_of,
    decide,
    splits_of,
    with_zones,
)
from data_prep.job import (
    TILES,
    Say,
    check_written,
    common_format,
    cut_tiles,
    cutting_of,
    executor_errors,
    load_images,
    look_at,
    relative_to,
    tiling_versions,
)
from data_prep.labels import Annotation, annotate_each, class_names
from data_prep.likeness_store import load_fingerprints, save_fingerprints
from data_prep.manifest import (
    TILED,
    DataSet,
    Entry,
    build_manifest,
    planned_source,
    tiled_entry,
)
from data_prep.near_duplicates import Likeness
from data_prep.plan import Plan, PlannedSource, counted
from data_prep.publication import Change, commit, hidden_name, read_manifest, recover
from data_prep.schema import image_field
from data_prep.settings import TilingSettings
from data_prep.split import Source, check_leaks, empty_cells
from data_prep.stages import Inspected, write_tiles
from data_prep.stages import settings as spark_settings
from distkeras_grid.errors import (
    EmptyDataError,
    EmptySplitError,
    ImageError,
    LabelError,
    PathNotFoundError,
)
from distkeras_grid.feeding.schema import Field
from distkeras_grid.spark.interpreters import TILING_PACKAGES, check_executors
from distkeras_grid.spark.outputs import Output
from distkeras_grid.spark.session import build_session
from distkeras_grid.spark.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What a killed update loses at most, and what one changed image makes Spark copy at most.
SHARD_BYTES = 16 << 30
# Rows that Spark reads at once while it copies tiles; its default would hold thousands of them.
COPIED_ROWS = "64"
FIRST_ERRORS = 5


@dataclass(frozen=True)
class Update:
    """What `update_tiles` did.

    Parameters
    ----------
    manifest : dict
        The content of ``_dataset.json`` now.
    new, changed, unchanged : int
        Images tiled for the first time, tiled again, and left as they were.
    removed : int
        Images that are no longer there.
    tiles : int
        Tiles cut.
    left_out : dict of str to str
        Why images could not be tiled, by path.
    """

    manifest: dict[str, Any] = field(repr=False)
    new: int
    changed: int
    unchanged: int
    removed: int
    tiles: int
    left_out: dict[str, str]


def update_tiles(
    settings: TilingSettings, *, spark: SparkSession | None = None, say: Say = lambda _: None
) -> Update:
    """Bring a data set of tiles up to date with the folder of images, or begin it.

    Parameters
    ----------
    settings : TilingSettings
        What concerns the tiles themselves must be what the data set was made with.
    spark : SparkSession, optional
        Default: the running one, or a new local one.
    say : callable, optional
        Receives the lines that tell what goes on.

    Returns
    -------
    Update

    Raises
    ------
    ConfigurationError, PathNotFoundError, OutputExistsError, NoSpaceError
        Before anything is written.
    EmptyDataError, ImageError
        If there is no image at all, or a new data set would have none.
    LabelError, SplitLeakError
        If labels or groups contradict what was tiled before.

    Examples
    --------
    >>> from data_prep import TileSpec, TilingSettings
    >>> settings = TilingSettings("images", "tiles", TileSpec(128), update=True)
    >>> update_tiles(settings, say=print).new                                    # doctest: +SKIP
    12
    """
    session = spark or build_session("distkeras_grid tiling")
    check_executors(session, TILING_PACKAGES)
    return _Night(session, settings, say).run()


class _Night:
    """One update, step by step."""

    def __init__(self, spark: SparkSession, settings: TilingSettings, say: Say) -> None:
        self._spark = spark
        self._settings = settings
        self._say = say
        self._storage = Storage(spark)
        self._root = settings.output.rstrip("/")
        self._last = -1  # number of the last shard
        self._pairs: list[Likeness] = []
        self._fresh: dict[str, bytes] = {}  # fingerprints that are not stored yet

    def run(self) -> Update:
        settings, storage = self._settings, self._storage
        if not storage.exists(settings.input):
            raise PathNotFoundError(f"There is no input folder {settings.input}. Check the path.")
        if recover(storage, self._root):
            self._say("finished the update that was interrupted last time")
        Output(storage, self._root, TILES, overwrite=True).check(settings.input)
        zones = cutting_of(settings, storage).zones
        before = self._read()
        known = with_zones(before.entries if before else {}, zones)
        listed = self._list()
        # A removed image's zones may stay in the table.
        zones.check_files({*listed, *known})
        said, unlabelled = annotate_each(
            list(listed), settings.labels, storage.read_text, settings.group
        )
        classes = before.image.classes if before else ()
        prune = settings.prune
        looks = settings.near_duplicates != "off"
        fingerprints = load_fingerprints(storage, self._root) if looks else {}
        comparison = compare(
            *(known, listed, said, unlabelled, classes),
            prune=prune,
            judged=fingerprints if looks else None,
        )
        uris = [listed[path].uri for path in comparison.candidates]
        found = self._look(uris, everything=before is None)
        # On the first night the folder is read once more, and some may be gone or have come.
        candidates = tuple(path for path in comparison.candidates if path in found)
        comparison = replace(comparison, candidates=candidates)
        found = {path: found[path] for path in candidates}
        image = before.image if before else self._new_image(found, said, comparison.problems)
        changes = decide(known, listed, said, comparison, found, image, prune=prune)
        self._find_alike(before, changes, found, fingerprints)
        joined = self._pairs if settings.near_duplicates == "join" else []
        splits = splits_of(
            *(changes, known, said, found, settings.fractions, settings.seed, joined)
        )
        planned = self._plan(changes, said, found, splits)
        _check_leaks(changes, planned)
        self._check_cells(before, changes, planned)
        self._tell(changes, planned, image)
        manifest = self._publish(before, changes, planned, listed, image)
        replaced = len(changes.replaced())
        return Update(
            manifest=manifest,
            new=len(planned) - replaced,
            changed=replaced,
            unchanged=len(listed) - len(planned) - len(changes.problems),
            removed=len(comparison.removed),
            tiles=sum(each.tiles for each in planned),
            left_out=changes.problems,
        )

    def _read(self) -> DataSet | None:
        content = read_manifest(self._storage, self._root)
        if content is None:
            return None
        DataSet.from_json(content).check_settings(self._settings)
        splits = [n for n in self._storage.list_names(self._root) if n.startswith("split=")]
        if splits:
            content = self._adopt(content, splits)
        return DataSet.from_json(content)

    def _adopt(self, content: dict[str, Any], splits: list[str]) -> dict[str, Any]:
        """Make a data set that was written at once the first shard of one with shards."""
        sources = [
            {**each, "shard": 0, "update": 0} if each["status"] == TILED else each
            for each in content["sources"]
        ]
        numbers = {"last_shard": 0, "last_update": 0, "shards": ["shard=0"]}
        adopted = {**content, "sources": sources, **numbers}
        change = Change(come=[(name, f"shard=0/{name}") for name in splits])
        commit(self._storage, self._root, change, adopted, content)
        return adopted

    def _list(self) -> dict[str, Listed]:
        """Return all images of the input folder, by path; their content is not read."""
        settings = self._settings
        self._say(f"listing the images in {settings.input} ...")
        with executor_errors(self._spark, settings.input):
            rows = (
                load_images(self._spark, settings)
                .selectExpr("path", "length", "unix_millis(modificationTime) as modified")
                .collect()
            )
        if not rows:
            # Not an update that removes all: more likely a disk that is not mounted.
            raise EmptyDataError(
                f"No file below {settings.input} matches {settings.file_glob}. Check the folder, "
                "or give --glob."
            )
        below = relative_to(self._storage.resolve(settings.input))
        return {below(row.path): Listed(row.path, row.length, row.modified) for row in rows}

    def _images(self, uris: Sequence[str], *, everything: bool = False) -> DataFrame:
        if everything:
            return load_images(self._spark, self._settings)
        return self._spark.read.format("binaryFile").load([_escaped(uri) for uri in uris])

    def _look(self, uris: Sequence[str], *, everything: bool) -> dict[str, Inspected]:
        if not uris:
            return {}
        images = self._images(uris, everything=everything)
        return look_at(self._spark, self._storage, images, self._settings, self._say)

    def _new_image(
        self,
        found: dict[str, Inspected],
        said: dict[str, Annotation],
        problems: dict[str, str],
    ) -> Field:
        """Return the image column of a data set that begins with these images."""
        good = {path: seen for path, seen in found.items() if seen.error is None}
        if not good:
            reasons = [*problems.values(), *(str(seen.error) for seen in found.values())]
            kind = ImageError if found else LabelError
            raise kind(f"no image can be tiled: {'; '.join(reasons[:FIRST_ERRORS])}")
        channels, dtype = common_format(good)
        classes = class_names([said[path].label for path in good])
        bits = max(seen.bits for seen in good.values())
        settings = self._settings
        return image_field(settings.spec, channels, dtype, settings.encoding, classes, bits)

    def _plan(
        self,
        changes: Changes,
        said: dict[str, Annotation],
        found: dict[str, Inspected],
        splits: dict[str, str],
    ) -> list[PlannedSource]:
        """Return the images to tile; those that replace tiles come first, so into one shard."""
        replaced = set(changes.replaced())
        return [
            planned_source(
                found[path],
                path,
                label=said[path].label,
                split=splits[path],
                group=said[path].group,
            )
            for path in sorted(changes.work, key=lambda path: (path not in replaced, path))
        ]

    def _find_alike(
        self,
        before: DataSet | None,
        changes: Changes,
        found: dict[str, Inspected],
        fingerprints: dict[str, bytes],
    ) -> None:
        """Find which images show the same place as one that is new; remember the former pairs."""
        self._fresh = {
            seen.pixel_sha256: seen.fingerprint
            for seen in found.values()
            if seen.fingerprint and seen.pixel_sha256 not in fingerprints
        }
        contents = contents_of(changes, found)
        new = alike_among(contents, {**fingerprints, **self._fresh}, self._fresh)
        former = before.content.get("near_duplicates", ()) if before else ()
        then = {path: each.pixel_sha256 for path, each in before.entries.items()} if before else {}
        self._pairs = list(dict.fromkeys([*still_true(former, then, contents), *new]))
        splits = {path: str(each.split) for path, each in changes.entries.items() if each.split}
        for line in describe(new, splits):
            self._say(line)

    def _check_cells(
        self, before: DataSet | None, changes: Changes, planned: Sequence[PlannedSource]
    ) -> None:
        """Refuse to begin a data set without some class in some split; later only tell."""
        standing = [entry for entry in changes.entries.values() if entry.status == TILED]
        both: list[Entry | PlannedSource] = [*standing, *planned]
        sources = [
            Source(each.source, str(each.content), str(each.label), each.group) for each in both
        ]
        splits = {each.source: str(each.split) for each in both}
        cells = empty_cells(sources, splits, self._settings.fractions)
        if cells and before is None and not self._settings.allow_empty:
            raise EmptySplitError.of(cells, f"shares {self._settings.split}")
        for label, split, _ in cells:
            self._say(f"  class {label} has no tile in {split}")

    def _tell(self, changes: Changes, planned: list[PlannedSource], image: Field) -> None:
        free = self._storage.free_space(self._root)
        if planned:
            plan = self._shard_plan(planned, image)
            for line in plan.describe(free):
                self._say(line)
            plan.check_space(free, self._root)
        else:
            self._say("no image to tile")
        for path, reason in sorted(changes.problems.items()):
            self._say(f"  left out: {path}: {reason}")

    def _shard_plan(self, planned: Sequence[PlannedSource], image: Field) -> Plan:
        angles = len(list(self._settings.spec.angles))
        in_order = tuple(sorted(planned, key=lambda each: each.source))
        return Plan(in_order, image.classes, angles, image.nbytes)

    def _publish(
        self,
        before: DataSet | None,
        changes: Changes,
        planned: list[PlannedSource],
        listed: dict[str, Listed],
        image: Field,
    ) -> dict[str, Any]:
        """Write and publish shard by shard; return the last manifest."""
        # Until its turn comes, an image to be replaced stands with its former tiles.
        entries = {entry.source: entry for entry in changes.dropped} | changes.entries
        basis = before.content if before else None
        update = before.last_update + 1 if before else 0
        self._last = before.last_shard if before else -1
        going = list(changes.dropped)
        waiting = {each.source for each in planned}
        for shard in _shards(planned) or [[]]:
            waiting -= {each.source for each in shard}
            change = Change()
            self._drop([e for e in going if e.source not in waiting], entries, image, change)
            going = [entry for entry in going if entry.source in waiting]
            self._cut(shard, image, change)
            for each in shard:
                at = listed[each.source]
                stamp = {"length": at.length, "modified": at.modified}
                entries[each.source] = tiled_entry(each, shard=self._last, update=update, **stamp)
            manifest = self._manifest(image, entries.values(), update)
            if change or basis is None or manifest["sources"] != basis["sources"]:
                commit(self._storage, self._root, change, manifest, basis)
                basis = manifest
        # Found again if they are lost: an update that is killed before this looks once more.
        save_fingerprints(self._storage, self._root, self._fresh)
        return basis or {}

    def _drop(
        self, going: list[Entry], entries: dict[str, Entry], image: Field, change: Change
    ) -> None:
        """Copy the shards of these images without their tiles, as new shards."""
        sources = {entry.source for entry in going}
        for number in sorted({entry.shard or 0 for entry in going}):
            name = f"shard={number}"
            change.go.append((name, hidden_name("old", number)))
            stay = [
                entry
                for entry in entries.values()
                if (entry.status, entry.shard) == (TILED, number) and entry.source not in sources
            ]
            if stay:
                self._copy(name, stay, image, change)
            for entry in stay:
                entries[entry.source] = replace(entry, shard=self._last)

    def _copy(self, name: str, stay: list[Entry], image: Field, change: Change) -> None:
        """Copy the tiles of these images into a new shard."""
        from pyspark.sql import functions as F

        folder = self._new_shard(change)
        wanted = Counter({str(entry.sha256): entry.tiles for entry in stay})
        reading = {"spark.sql.parquet.columnarReaderBatchSize": COPIED_ROWS}
        with spark_settings(self._spark, reading), executor_errors(self._spark, self._root):
            tiles = self._spark.read.parquet(f"{self._root}/{name}")
            tiles = tiles.where(F.col("source_sha256").isin(sorted(wanted)))
            write_tiles(self._spark, tiles, image, folder)
            check_written(self._spark, folder, wanted)

    def _new_shard(self, change: Change) -> str:
        """Return the hidden folder of one more shard."""
        self._last += 1
        hidden = hidden_name("new", self._last)
        change.come.append((hidden, f"shard={self._last}"))
        return f"{self._root}/{hidden}"

    def _cut(self, shard: list[PlannedSource], image: Field, change: Change) -> None:
        """Tile images into a new shard."""
        if not shard:
            return
        plan = self._shard_plan(shard, image)
        images = self._images([each.uri for each in shard])
        folder = self._new_shard(change)
        cut_tiles(self._spark, images, plan, image, self._settings, folder, self._say)
        self._say(f"  shard {self._last}: {plan.tiles:,} tiles of {counted(len(shard), 'image')}")

    def _manifest(self, image: Field, entries: Iterable[Entry], update: int) -> dict[str, Any]:
        listed = list(entries)
        shards = sorted({entry.shard for entry in listed if entry.shard is not None})
        return {
            **build_manifest(self._settings, image, listed, tiling_versions()),
            "shards": [f"shard={number}" for number in shards],
            "last_shard": self._last,
            "last_update": update,
            "near_duplicates": to_json(self._pairs),
        }


def _shards(planned: Sequence[PlannedSource]) -> list[list[PlannedSource]]:
    """Divide images into shards of about `SHARD_BYTES`, in their order."""
    shards: list[list[PlannedSource]] = []
    room = 0.0
    for each in planned:
        if not shards or room <= 0:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(each)
        room -= each.tiles * each.tile_bytes
    return shards


def _check_leaks(changes: Changes, planned: Sequence[PlannedSource]) -> None:
    standing = [entry for entry in changes.entries.values() if entry.status == TILED]
    rows = [(str(entry.split), str(entry.content), entry.group) for entry in standing]
    check_leaks(rows + [(each.split, each.content, each.group) for each in planned])


def _escaped(uri: str) -> str:
    """Return a path in which no character means a pattern to Hadoop."""
    return "".join("\\" + letter if letter in "{}[]*?\\" else letter for letter in uri)
