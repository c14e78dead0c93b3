"""Files on any path that Hadoop supports, through the FileSystem classes of the driver's JVM.

``file:``, ``hdfs:``, ``s3a:``, Kerberos and high availability work as they do for Spark itself. A
path without a scheme belongs to ``fs.defaultFS``, as everywhere in Hadoop. A file appears under its
name only when it is complete: it is written under a hidden name first, and then renamed.
"""

from __future__ import annotations

import codecs
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from distkeras_grid.errors import (
    OutputExistsError,
    PathNotFoundError,
    StorageError,
)
from distkeras_grid.spark import local_disk
from distkeras_grid.spark.internals import hadoop_of
from distkeras_grid.spark.local_names import (
    UTF8,
    check_names_below,
    unreadable_name,
)
from distkeras_grid.spark.storage_errors import disk_errors, translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Py4J sends bytes as one line of base64, at some 10 MB/s. Longer contents go through a local file,
# which this process and its JVM share, because they are on one machine.
CHUNK_BYTES = 1 << 20
COPY_BYTES = 8 << 20
FIRST_FILES = 1000
#: Longer than any file: Java's largest number.
LONGEST = 2**63 - 1

# Characters by which Hadoop knows a pattern.
OF_PATTERNS = "{}[]*?\\"

# A folder gets its name here file by file, or a file may replace another of its name.
OBJECT_STORES = frozenset(
    ("s3", "s3a", "s3n", "gs", "oss", "cos", "cosn", "obs", "swift", "wasb", "wasbs")
)


def rename_note(uri: str) -> str | None:
    """Return what an object store does not guarantee; None for file systems that rename.

    Examples
    --------
    >>> rename_note("hdfs://host:8020/checkpoints") is None
    True
    """
    scheme = uri.partition(":")[0].lower()
    if scheme not in OBJECT_STORES:
        return None
    return (
        f"{uri} is in an object store ({scheme}:), where a rename is not one step. A driver that "
        "is killed meanwhile, or two that write at once, can leave an output or a checkpoint that "
        "is not whole. Such a checkpoint is recognized and not used. On HDFS this cannot happen."
    )


def escaped(path: str) -> str:
    r"""Return a path that Spark does not take for a pattern when it reads.

    Examples
    --------
    >>> print(escaped("/data/plate [3]"))
    /data/plate \[3\]
    """
    return "".join("\\" + letter if letter in OF_PATTERNS else letter for letter in path)


class Storage:
    """Files and directories on the paths of a Spark session.

    Every method raises `StorageError` with the path if the file system refuses,
    `PathNotFoundError` if the path does not exist, and `NoSpaceError` if a disk or a quota is full.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._use(*hadoop_of(spark))

    @classmethod
    def of_jvm(cls, gateway: Any, configuration: Any) -> Self:
        """Build one without a Spark session."""
        storage = cls.__new__(cls)
        storage._use(gateway, configuration)
        return storage

    def _use(self, gateway: Any, configuration: Any) -> None:
        self.gateway = gateway
        self.jvm = gateway.jvm
        self._configuration = configuration
        # In which the JVM reads the names of local files.
        self.encoding = str(self.jvm.java.lang.System.getProperty("sun.jnu.encoding"))

    def resolve(self, uri: str) -> str:
        """Return the full path: scheme, host and directories from the root."""
        with translated("resolve", uri):
            return str(self.java_path(uri)[1].toString())

    def exists(self, uri: str) -> bool:
        """Tell whether there is a file or a directory at `uri`."""
        with translated("look up", uri):
            file_system, path = self.java_path(uri)
            return bool(file_system.exists(path))

    def list_names(self, uri: str) -> list[str]:
        """Return the names directly in the directory `uri`, sorted; for a file, its own."""
        with translated("list", uri):
            file_system, path = self.java_path(uri)
            entries = file_system.listStatus(path)
            return sorted(str(entry.getPath().getName()) for entry in entries)

    def local_path(self, uri: str) -> str | None:
        """Return a path of this machine without its scheme; None for other file systems."""
        whole = self.resolve(uri)
        return "/" + whole[5:].lstrip("/") if whole.startswith("file:") else None

    def check_names(self, uri: str) -> None:
        """Refuse a local folder that holds names which Java passes over; see `local_names`."""
        if (path := self.local_path(uri)) is not None:
            check_names_below(path, self.encoding)

    def matcher(self, glob: str) -> Callable[[str], bool]:
        """Return a function that tells whether a name matches a pattern, in Hadoop's syntax."""
        pattern = self.jvm.org.apache.hadoop.fs.GlobPattern(glob).compiled().pattern()
        compiled = re.compile(str(pattern), re.DOTALL)
        return lambda name: compiled.fullmatch(name) is not None

    def first_file(self, uri: str) -> str | None:
        """Return the full path of a file below `uri` that is not empty; None if none is found.

        Only the first thousand files are looked at.
        """
        with translated("list", uri):
            file_system, path = self.java_path(uri)
            files = file_system.listFiles(path, True) if file_system.exists(path) else None
            for _ in range(FIRST_FILES):
                if files is None or not files.hasNext():
                    break
                status = files.next()
                if int(status.getLen()) > 0:
                    return str(status.getPath().toString())
        return None

    def read_bytes(self, uri: str) -> bytes:
        """Return the content of a file."""
        with translated("read", uri):
            file_system, path = self.java_path(uri)
            stream = file_system.open(path)
            try:
                content = bytes(stream.readNBytes(CHUNK_BYTES))
                if len(content) == CHUNK_BYTES:
                    content += self._rest_of(stream)
            finally:
                stream.close()
        return content

    def _rest_of(self, stream: Any, most: int = LONGEST) -> bytes:
        """Return what a stream of the JVM still holds, or so many bytes of it."""
        with tempfile.NamedTemporaryFile(prefix="dkg-") as file:
            target = self.jvm.java.io.FileOutputStream(file.name)
            try:
                self.jvm.org.apache.commons.io.IOUtils.copyLarge(stream, target, 0, most)
            finally:
                target.close()
            return Path(file.name).read_bytes()

    def read_lines(self, uri: str) -> Iterator[str]:
        """Yield the lines of a UTF-8 file with their ends, a few MB of it in memory at a time."""
        started: list[bytes] = []
        for content in self._pieces_of(uri):
            *ended, rest = content.split(b"\n")
            for line in ended:
                yield _as_text(uri, b"".join([*started, line, b"\n"]))
                started.clear()
            started.append(rest)
        if last := b"".join(started):
            yield _as_text(uri, last)

    def _pieces_of(self, uri: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces of `COPY_BYTES`."""
        with translated("read", uri):
            file_system, path = self.java_path(uri)
            stream = file_system.open(path)
        try:
            while True:
                with translated("read", uri):
                    piece = self._rest_of(stream, COPY_BYTES)
                if not piece:
                    return
                yield piece
        finally:
            stream.close()

    def _write(self, stream: Any, content: bytes) -> None:
        """Write bytes to a stream of the JVM."""
        if len(content) <= CHUNK_BYTES:
            stream.write(bytes(content))
            return
        with tempfile.NamedTemporaryFile(prefix="dkg-") as file:
            file.write(content)
            file.flush()
            source = self.jvm.java.io.FileInputStream(file.name)
            try:
                self.jvm.org.apache.commons.io.IOUtils.copyLarge(source, stream)
            finally:
                source.close()

    def read_text(self, uri: str) -> str:
        """Return the content of a UTF-8 file."""
        return _as_text(uri, self.read_bytes(uri))

    def write_bytes(self, uri: str, content: bytes, *, overwrite: bool = False) -> None:
        """Write a file, and create its directories if they are missing."""
        self._write_pieces(uri, [content], overwrite=overwrite)

    def write_lines(self, uri: str, lines: Iterable[str]) -> None:
        """Write a new UTF-8 file, a few MB of it in memory at a time; see `write_bytes`."""
        self._write_pieces(uri, _joined(lines), overwrite=False)

    def _write_pieces(self, uri: str, pieces: Iterable[bytes], *, overwrite: bool) -> None:
        with self._replacing(uri, overwrite) as temporary, translated("write", uri):
            stream = self._create(temporary)
            try:
                for piece in pieces:
                    self._write(stream, piece)
                _persist(stream)
            finally:
                stream.close()

    def _create(self, uri: str) -> Any:
        """Return a stream of the JVM into a new file, in place of one that exists.

        On a local disk, Hadoop would write a checksum into a file beside it, and would refuse to
        read the file after somebody has edited it.
        """
        file_system, path = self.java_path(uri)
        if _is_local(file_system):
            checksum = file_system.getChecksumFile(path)
            file_system = file_system.getRawFileSystem()
            # The checksum of a former file would be wrong for this one.
            file_system.delete(checksum, False)
        return file_system.create(path, True)

    def write_text(self, uri: str, content: str, *, overwrite: bool = False) -> None:
        """Write a UTF-8 file; see `write_bytes`."""
        self.write_bytes(uri, content.encode("utf-8"), overwrite=overwrite)

    def write_in_place(self, uri: str, content: str) -> None:
        """Write a UTF-8 file under its own name, in place of one that exists.

        Unlike `write_text`, it uses no hidden name: a process killed meanwhile leaves at most an
        incomplete file of this name.
        """
        with translated("write", uri):
            stream = self._create(uri)
            try:
                self._write(stream, content.encode("utf-8"))
                # Some are renamed afterwards, and decide then.
                _persist(stream)
            finally:
                stream.close()

    def upload(self, file: Path, uri: str, done: Callable[[int], object]) -> None:
        """Copy a file of this machine to `uri`, where all users may read it.

        Its bytes do not pass through Python.

        `done`: called with the number of bytes of each copied piece.
        """
        with self._replacing(uri, False) as temporary, translated("write", uri):
            file_system, path = self.java_path(temporary)
            source = self.jvm.java.io.FileInputStream(str(file))
            try:
                stream = self._create(temporary)
                try:
                    # Hadoop's own copyBytes would take a small number for the size of its buffer.
                    copy = self.jvm.org.apache.commons.io.IOUtils.copyLarge
                    while count := int(copy(source, stream, 0, COPY_BYTES)):
                        done(count)
                    _persist(stream)
                finally:
                    stream.close()
            finally:
                source.close()
            self._set_mode(file_system, path, "644")

    def make_public_dirs(self, uri: str) -> None:
        """Create the directory `uri`; it and the one above it get mode 755."""
        self.make_dirs(uri)
        with translated("change the mode of", uri):
            file_system, path = self.java_path(uri)
            for _ in range(2):
                self._set_mode(file_system, path, "755")
                path = path.getParent()

    def make_private_dirs(self, uri: str) -> None:
        """Create the directory `uri`, which only its owner may read, and those above it."""
        self.make_dirs(uri)
        with translated("change the mode of", uri):
            file_system, path = self.java_path(uri)
            self._set_mode(file_system, path, "700")

    def _set_mode(self, file_system: Any, path: Any, mode: str) -> None:
        permission = self.jvm.org.apache.hadoop.fs.permission.FsPermission(mode)
        file_system.setPermission(path, permission)

    def make_dirs(self, uri: str) -> None:
        """Create the directory `uri` and those above it, unless they exist."""
        with translated("make directory", uri):
            file_system, path = self.java_path(uri)
            if not file_system.mkdirs(path):
                raise StorageError(f"Cannot make directory {uri}: the file system refused.")

    def delete(self, uri: str) -> bool:
        """Delete a file, or a directory with its content; return whether there was one."""
        with translated("delete", uri):
            file_system, path = self.java_path(uri)
            return bool(file_system.delete(path, True))

    def delete_empty(self, uri: str) -> bool:
        """Delete a directory if nothing is in it; return whether it is gone."""
        try:
            with translated("delete", uri):
                file_system, path = self.java_path(uri)
                return bool(file_system.delete(path, False))
        except PathNotFoundError:
            return True
        except StorageError:
            return False

    def discard(self, uri: str, error: BaseException) -> None:
        """Delete what is incomplete after `error`; if that fails, too, add a note to `error`."""
        try:
            self.delete(uri)
        except StorageError as second:
            error.add_note(f"{uri} is incomplete and cannot be deleted: {second}")

    def rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        """Rename a file or a directory within one file system, in one step if it can do so.

        On a local disk all that lies below reaches the disk first, also what Spark has written,
        and the new name afterwards.
        """
        if not overwrite and self.exists(target):
            raise OutputExistsError(f"{target} exists. Delete it or choose another name.")
        with translated(f"rename to {target}", source):
            file_system, from_path = self.java_path(source)
            _, to_path = self.java_path(target)
            if not _is_local(file_system):
                self._rename(file_system, from_path, to_path, overwrite=overwrite)
                return
            old, new = (str(path.toUri().getPath()) for path in (from_path, to_path))
            with disk_errors(f"rename to {target}", source), local_disk.renaming(old, new):
                if os.path.isfile(old):
                    # The checksum of a former file would be wrong for this one.
                    checksum = file_system.getChecksumFile(to_path)
                    file_system.getRawFileSystem().delete(checksum, False)
                    local_disk.rename_file(old, new, overwrite=overwrite)
                else:
                    self._rename(file_system, from_path, to_path, overwrite=overwrite)

    def _rename(self, file_system: Any, source: Any, target: Any, *, overwrite: bool) -> None:
        # FileSystem.rename moves *into* a directory that exists, and returns `false` if it is
        # refused. FileContext raises, and replaces a file in one step.
        context = self.jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            file_system.getUri(), self._configuration
        )
        modes = self.jvm.org.apache.hadoop.fs.Options.Rename
        options = self.gateway.new_array(modes, 1)
        options[0] = modes.OVERWRITE if overwrite else modes.NONE
        context.rename(source, target, options)

    def persist(self, uri: str) -> None:
        """Let a folder that Spark has written reach the disk, if it is on a local one."""
        if (path := self.local_path(uri)) is not None:
            with disk_errors("write to the disk", uri):
                local_disk.persist(path)

    def free_space(self, uri: str) -> int:
        """Return the bytes that can still be written at `uri`, which need not exist yet.

        On HDFS, it is the cluster's free space or the rest of a quota, divided by the default
        replication. Object stores return a number that is never reached.
        """
        with translated("measure", uri):
            file_system, path = self.java_path(uri)
            # A local file system reports 0 for a path that does not exist.
            while path.getParent() is not None and not file_system.exists(path):
                path = path.getParent()
            remaining = int(file_system.getStatus(path).getRemaining())
            if str(file_system.getUri().getScheme()) == "hdfs":
                remaining = min([remaining, *self._quotas(file_system, path)])
            return remaining // max(1, int(file_system.getDefaultReplication(path)))

    def _quotas(self, file_system: Any, path: Any) -> Iterator[int]:
        """Yield the bytes left by the quotas of an HDFS directory and of those above it.

        Where a directory has no quota, HDFS adds up all that lies below, and refuses if others have
        locked some of that: ``/tmp`` and ``/`` on most clusters. There is nothing to yield then.
        """
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

        while path is not None:
            try:
                usage = file_system.getQuotaUsage(path)
            except Py4JJavaError as error:
                if error.java_exception.getClass().getSimpleName() != "AccessControlException":
                    raise
            else:
                if int(usage.getSpaceQuota()) >= 0:
                    yield max(0, int(usage.getSpaceQuota()) - int(usage.getSpaceConsumed()))
            path = path.getParent()

    def size(self, uri: str) -> int:
        """Return the bytes of a file, or of all files below a directory."""
        with translated("measure", uri):
            file_system, path = self.java_path(uri)
            return int(file_system.getContentSummary(path).getLength())

    def modified(self, uri: str) -> float:
        """Return when a file was changed last, Unix seconds."""
        with translated("look up", uri):
            file_system, path = self.java_path(uri)
            return float(file_system.getFileStatus(path).getModificationTime()) / 1000

    def home(self) -> str:
        """Return the full path of the user's home directory on the default file system."""
        with translated("look up", "the home directory"):
            file_system = self.jvm.org.apache.hadoop.fs.FileSystem.get(self._configuration)
            return str(file_system.getHomeDirectory().toString())

    def delete_on_exit(self, uri: str) -> None:
        """Delete a file or a directory when the JVM exits, unless that is killed."""
        with translated("delete", uri):
            file_system, path = self.java_path(uri)
            file_system.deleteOnExit(path)

    def user(self) -> str:
        """Return the name of the user who writes the files."""
        security = self.jvm.org.apache.hadoop.security
        return str(security.UserGroupInformation.getCurrentUser().getShortUserName())

    def hidden_beside(self, uri: str, ending: str = "tmp") -> str:
        """Return a new name in the directory of `uri` that Spark and Hadoop ignore."""
        directory, _, name = self.resolve(uri).rpartition("/")
        if not name:
            raise StorageError(f"{uri} is the root of a file system. Give a path below it.")
        # They ignore names that begin with "_" or "." when they read a directory.
        return f"{directory}/_{name}.{uuid.uuid4().hex}.{ending}"

    def java_path(self, uri: str) -> tuple[Any, Any]:
        """Return the file system of a path, and the path as that file system names it."""
        path = self.jvm.org.apache.hadoop.fs.Path(uri)
        file_system = path.getFileSystem(self._configuration)
        whole = file_system.makeQualified(path)
        if self.encoding != UTF8 and _is_local(file_system) and not str(whole).isascii():
            raise unreadable_name(uri, self.encoding)
        return file_system, whole

    @contextmanager
    def _replacing(self, uri: str, overwrite: bool) -> Iterator[str]:
        """Yield a hidden name beside `uri`; rename it at the end, delete it after an error."""
        if not overwrite and self.exists(uri):
            raise OutputExistsError(f"{uri} exists. Delete it or choose another name.")
        temporary = self.hidden_beside(uri)
        try:
            yield temporary
            self.rename(temporary, uri, overwrite=overwrite)
        except BaseException as error:
            self.discard(temporary, error)
            raise


def _joined(lines: Iterable[str]) -> Iterator[bytes]:
    """Yield lines as bytes, many in one piece: each piece goes through a file."""
    piece = bytearray()
    for line in lines:
        piece += line.encode("utf-8")
        if len(piece) >= COPY_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


def _as_text(uri: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        utf16 = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        known = "UTF-16" if utf16 else "another encoding"
        source = "UTF-16" if utf16 else "WINDOWS-1252"
        raise StorageError(
            f"{uri} is not UTF-8 text ({error}): it is text in {known}, or no text. Save a table "
            f"as UTF-8 (CSV UTF-8), or convert it: iconv -f {source} -t UTF-8 FILE > NEW."
        ) from error


def _persist(stream: Any) -> None:
    """Let the bytes of a stream reach the disks before its file gets its name.

    Otherwise a file of this name could be empty after a power failure. Object stores cannot do
    this, and need not.
    """
    if stream.hasCapability("hsync"):
        stream.hsync()


def _is_local(file_system: Any) -> bool:
    return str(file_system.getUri().getScheme()) == "file"
