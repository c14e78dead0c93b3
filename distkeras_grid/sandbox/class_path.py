"""The classes of Hadoop's daemons: PySpark's own jars, and four pinned ones of Maven Central.

PySpark brings Hadoop's client. One more jar holds the daemons, relocated to live beside it, and
three of BouncyCastle serve the ResourceManager.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import requests

from distkeras_grid import fsync
from distkeras_grid.errors import SandboxError

# Longest silence while a jar is fetched.
SILENT_SECONDS = 60.0
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Jar:
    """A jar of Maven Central."""

    group: str  # group and artifact and version: Its coordinates
    artifact: str
    version: str
    sha256: str  # Hexadecimal digest of the file

    @property
    def file_name(self) -> str:
        """Name of the file."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def url(self) -> str:
        """Where a person can get it."""
        folder = f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}"
        return f"https://repo1.maven.org/maven2/{folder}/{self.file_name}"


HADOOP_VERSION = "3.5.0"
JARS = (
    Jar(
        "org.apache.hadoop",
        "hadoop-client-minicluster",
        HADOOP_VERSION,
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
    ),
    Jar(
        "org.bouncycastle",
        "bcprov-jdk18on",
        "1.82",
        "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
    ),
    Jar(
        "org.bouncycastle",
        "bcpkix-jdk18on",
        "1.82",
        "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
    ),
    Jar(
        "org.bouncycastle",
        "bcutil-jdk18on",
        "1.82",
        "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
    ),
)
# What the daemons need of PySpark's own jars.
FROM_PYSPARK = (
    "hadoop-client-api-*.jar",
    "hadoop-client-runtime-*.jar",
    "snappy-java-*.jar",
    "slf4j-api-*.jar",
    "jcl-over-slf4j-*.jar",
    "log4j-*.jar",
)


def daemon_class_path(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the class path of the daemons; fetches their jars if they are not here yet."""
    return [*local_jars(JARS, environment), *pyspark_jars()]


def local_jars(jars: Iterable[Jar], environment: Mapping[str, str]) -> list[str]:
    """Return the paths of jars; fetches those that are missing.

    Each is compared with its digest at each start: it may have been put here by hand, or changed
    since. 68 MB take a fraction of a second.
    """
    files = []
    for jar in jars:
        file = jar_folder(environment) / jar.file_name
        if not file.exists():
            fetch(jar, file)
        check_digest(file, jar)
        files.append(str(file))
    return files


def pyspark_jars() -> list[str]:
    """Return the jars of PySpark that the daemons need."""
    folder = pyspark_folder()
    if not (folder / f"hadoop-client-api-{HADOOP_VERSION}.jar").exists():
        names = ", ".join(sorted(path.name for path in folder.glob("hadoop-client-api-*")))
        raise SandboxError(
            f"The sandbox's jars are those of Hadoop {HADOOP_VERSION}; this PySpark brings "
            f"{names or 'none'}. Install pyspark 4.3."
        )
    return sorted(str(path) for pattern in FROM_PYSPARK for path in folder.glob(pattern))


def jar_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where fetched jars are kept between runs."""
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "distkeras_grid" / f"hadoop-{HADOOP_VERSION}"


def fetch(jar: Jar, file: Path) -> None:
    """Fetch a jar from Maven Central; the file appears complete or not at all."""
    try:
        with fsync.atomic_file(file) as partial:
            with requests.get(jar.url, stream=True, timeout=SILENT_SECONDS) as answer:
                answer.raise_for_status()
                with partial.open("wb") as written:
                    for piece in answer.iter_content(PIECE_BYTES):
                        written.write(piece)
            check_digest(partial, jar)
    except OSError as error:
        raise SandboxError(
            f"A jar of Hadoop cannot be fetched: {error}. With no way to Maven Central from here, "
            f"put the four into {file.parent} by hand: {' '.join(each.url for each in JARS)}."
        ) from error


def check_digest(file: Path, jar: Jar) -> None:
    """Refuse a file whose digest is not that of the jar."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != jar.sha256:
        raise SandboxError(
            f"{jar.file_name} must have the SHA-256 {jar.sha256}. Received: {digest}, of {file}. "
            f"It is damaged, or somebody changed it: replace it by the file at {jar.url}."
        )


def java(environment: Mapping[str, str] = os.environ) -> str:
    """Return the command that runs Java, as Spark finds it.

    Examples
    --------
    >>> java({"JAVA_HOME": "/opt/jdk"}), java({})
    ('/opt/jdk/bin/java', 'java')
    """
    home = environment.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def no_java(command: str) -> SandboxError:
    """Return the error for a command that runs Java, and is not there."""
    return SandboxError(f"{command} is not there. Install Java 17 or later, or set JAVA_HOME.")


def pyspark_folder() -> Path:
    """Return the folder of PySpark's jars."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SandboxError("pyspark is not installed. Install it: pip install distkeras_grid.")
    return Path(spec.origin).parent / "jars"
