"""Find the classes of Hadoop's daemons: ``HADOOP_HOME``, or four pinned jars.

PySpark brings Hadoop's client. One more jar holds the daemons, relocated to live beside it, and
three of BouncyCastle serve the ResourceManager. The Ivy inside PySpark fetches them from Maven
Central, once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from distkeras_grid import fsync
from distkeras_grid.errors import SandboxError

FETCH_SECONDS = 300.0


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
# The folders of a Hadoop distribution; those without a pattern hold the daemons' web pages.
OF_DISTRIBUTION = (
    ("common", "*"),
    ("common/lib", "*"),
    ("hdfs", ""),
    ("hdfs", "*"),
    ("hdfs/lib", "*"),
    ("mapreduce", "*"),
    ("yarn", ""),
    ("yarn", "*"),
    ("yarn/lib", "*"),
)


def daemon_class_path(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the class path of the daemons; fetches their jars if they are not here yet.

    Each jar that is not PySpark's is compared with its digest, however it came here.
    """
    if home := environment.get("HADOOP_HOME"):
        return distribution_class_path(Path(home))
    bundled = pyspark_jars()
    return [*_here(JARS, environment), *bundled]


def _here(jars: Sequence[Jar], environment: Mapping[str, str]) -> list[str]:
    """Return the paths of jars, each with its digest; fetches those that are missing."""
    folder = jar_folder(environment)
    missing = [jar for jar in jars if not (folder / jar.file_name).exists()]
    if missing:
        fetch(missing, folder)
    # At each start: they may have been put here by hand, or changed since. A digest that is
    # remembered by size and time would not notice it. 68 MB take a fraction of a second.
    for jar in jars:
        check_digest(folder / jar.file_name, jar)
    return [str(folder / jar.file_name) for jar in jars]


def distribution_class_path(home: Path) -> list[str]:
    """Return the class path of a Hadoop distribution."""
    share = home / "share" / "hadoop"
    if not any((share / "hdfs").glob("hadoop-hdfs-*.jar")):
        raise SandboxError(
            f"HADOOP_HOME is {home}, but {share}/hdfs holds no hadoop-hdfs jar. Set it to an "
            "unpacked Hadoop, or unset it to use the jars that go with PySpark."
        )
    return [
        str(share / folder / pattern) if pattern else str(share / folder)
        for folder, pattern in OF_DISTRIBUTION
    ]


def pyspark_jars() -> list[str]:
    """Return the jars of PySpark that the daemons need."""
    folder = _pyspark_folder()
    if not (folder / f"hadoop-client-api-{HADOOP_VERSION}.jar").exists():
        names = ", ".join(sorted(path.name for path in folder.glob("hadoop-client-api-*")))
        raise SandboxError(
            f"The sandbox's jars are those of Hadoop {HADOOP_VERSION}; this PySpark brings "
            f"{names or 'none'}. Install pyspark 4.3, or set HADOOP_HOME to a Hadoop of your own."
        )
    return sorted(str(path) for pattern in FROM_PYSPARK for path in folder.glob(pattern))


def jar_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where fetched jars are kept between runs."""
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "distkeras_grid" / f"hadoop-{HADOOP_VERSION}"


def fetch(jars: Sequence[Jar], folder: Path) -> None:
    """Fetch jars by Ivy, check their digests, and move them to a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _fetch(jars, folder, Path(scratch))
    except OSError as error:
        raise _not_fetched(jars, folder, str(error)) from error


def _fetch(jars: Sequence[Jar], folder: Path, work: Path) -> None:
    """Fetch jars to a working folder in `folder`, and move them to `folder` itself."""
    (work / "ivy.xml").write_text(ivy_file(jars), encoding="utf-8")
    command = ivy_command(work)
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=FETCH_SECONDS
        )
    except FileNotFoundError as error:
        raise no_java(command[0]) from error
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(jars, folder, f"no end after {FETCH_SECONDS:.0f} s") from error
    for jar in jars:
        fetched = work / "lib" / jar.file_name
        if not fetched.exists():
            raise _not_fetched(jars, folder, _last_problem(done.stdout + done.stderr))
        check_digest(fetched, jar)
    for jar in jars:
        # In one step: another process may be fetching, too.
        fsync.replace(work / "lib" / jar.file_name, folder / jar.file_name)


def ivy_file(jars: Sequence[Jar]) -> str:
    """Return the Ivy file that names jars, without what they depend on.

    Examples
    --------
    >>> print(ivy_file([Jar("org.a", "b", "1", "")]))
    <ivy-module version="2.0">
      <info organisation="distkeras_grid" module="sandbox"/>
      <dependencies>
        <dependency org="org.a" name="b" rev="1" conf="*->master" transitive="false"/>
      </dependencies>
    </ivy-module>
    """
    lines = [
        f'    <dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" '
        'conf="*->master" transitive="false"/>'
        for jar in jars
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="distkeras_grid" module="sandbox"/>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
        ]
    )


def ivy_command(work: Path) -> list[str]:
    """Return the command that fetches what ``ivy.xml`` in a folder names into its ``lib``."""
    ivy = sorted(_pyspark_folder().glob("ivy-*.jar"))
    if not ivy:
        raise SandboxError(f"{_pyspark_folder()} holds no ivy jar. Set HADOOP_HOME instead.")
    retrieved = f"{work}/lib/[artifact]-[revision].[ext]"
    return [
        *(java(), "-jar", str(ivy[-1])),
        *("-ivy", str(work / "ivy.xml")),
        *("-cache", str(work / "cache")),
        *("-retrieve", retrieved),
    ]


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


def _pyspark_folder() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SandboxError("pyspark is not installed. Install it: pip install distkeras_grid.")
    return Path(spec.origin).parent / "jars"


def _not_fetched(jars: Sequence[Jar], folder: Path, why: str) -> SandboxError:
    urls = " ".join(jar.url for jar in jars)
    return SandboxError(
        f"Hadoop's jars cannot be fetched: {why}. With no way to Maven Central from here, put them "
        f"into {folder} by hand: {urls}. Or set HADOOP_HOME."
    )


def _last_problem(output: str) -> str:
    problems = [
        line.strip()
        for line in output.splitlines()
        if "SERVER ERROR" in line
        or "UNRESOLVED" in line
        or "Exception" in line
        or "not found" in line
    ]
    lines = problems or output.strip().splitlines() or ["no word of Ivy"]
    return lines[-1][:300]
