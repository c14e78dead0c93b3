"""Samples as the files of one format. Pure: it returns paths below the output, and bytes."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import TypeAlias
from urllib.parse import quote

from data_prep.export.samples import Sample
from data_prep.export.tfrecord import Value, example, record

#: Path below the output, and content.
File: TypeAlias = tuple[str, bytes]
FOLDERS, WEBDATASET, TFRECORD, HUGGING_FACE = "png", "webdataset", "tfrecord", "huggingface"
#: Formats that tasks write themselves.
OWN = (FOLDERS, WEBDATASET, TFRECORD)


def write(kind: str, samples: Iterable[Sample], split: str, number: int) -> Iterator[File]:
    """Yield the files of some samples.

    Parameters
    ----------
    kind : {"png", "webdataset", "tfrecord"}
    samples : iterable of Sample
    split : str
    number : int
        Number of the file among those of the split.
    """
    if kind == FOLDERS:
        for sample in samples:
            name = f"{sample.key}.{sample.extension}"
            yield f"{split}/{folder_name(sample.label_name)}/{name}", sample.image
        return
    content = as_tar(samples) if kind == WEBDATASET else as_tfrecord(samples)
    if content:
        ending = "tar" if kind == WEBDATASET else "tfrecord"
        yield f"{split}-{number:05d}.{ending}", content


def folder_name(label: str) -> str:
    """Return the name of a class as the name of a folder.

    Examples
    --------
    >>> folder_name("dark field"), folder_name("a/b"), folder_name("_x"), folder_name("ö")
    ('dark field', 'a%2Fb', '%5Fx', 'ö')
    """
    # Spark and Hadoop skip names that begin with a dot or an underscore.
    first = label[:1].replace(".", "%2E").replace("_", "%5F")
    rest = "".join(quote(each, safe="") if each in "/\\%\0" else each for each in label[1:])
    return (quote(first, safe="") if first in "/\\%\0" and first else first) + rest


def as_tar(samples: Iterable[Sample]) -> bytes:
    """Return samples as a WebDataset shard: for each its image, ``.cls`` and ``.json``.

    The same samples always give the same bytes.
    """
    stream, some = io.BytesIO(), False
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples:
            some = True
            told = json.dumps(sample.columns, sort_keys=True).encode()
            parts = {sample.extension: sample.image, "cls": b"%d" % sample.label, "json": told}
            for ending, content in parts.items():
                header = tarfile.TarInfo(f"{sample.key}.{ending}")
                header.size, header.mode = len(content), 0o644
                archive.addfile(header, io.BytesIO(content))
    return stream.getvalue() if some else b""


def as_tfrecord(samples: Iterable[Sample]) -> bytes:
    """Return samples as records of ``tf.train.Example``.

    The features ``image/encoded``, ``image/format``, ``image/class/label`` and
    ``image/class/text`` are those of TensorFlow's own image data sets; the others have the names
    of their columns. A column that is null has no feature.
    """
    return b"".join(record(example(_features(sample))) for sample in samples)


def _features(sample: Sample) -> dict[str, Value]:
    return {
        **{name: value for name, value in sample.columns.items() if value is not None},
        "image/encoded": sample.image,
        "image/format": sample.extension,
        "image/class/label": sample.label,
        "image/class/text": sample.label_name,
    }
