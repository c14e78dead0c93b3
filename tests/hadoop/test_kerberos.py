"""A sandbox with Kerberos: what a ticket and a keytab open, and that nothing else does.

One sandbox serves all tests. They need the extra ``kerberos`` and ``kinit``: `make test-kerberos`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests
from hdfs import Client

from distkeras_grid.cli.exit_codes import ExitCode
from distkeras_grid.sandbox.daemons import working_below
from distkeras_grid.submission import run_verb
from distkeras_grid.tickets import Keytab, ticket_authentication
from tests.hadoop.conftest import SPARK_HOME, Grid, first_samples
from tests.hadoop.kerberos_sandbox import (
    CLOCK_SECONDS,
    HDFS,
    KerberosSandbox,
    Realm,
    full,
    using_realm,
)

pytestmark = [
    pytest.mark.full,
    pytest.mark.hadoop,
    pytest.mark.skipif(
        find_spec("gssapi") is None or find_spec("requests_gssapi") is None,
        reason="needs the extra kerberos: make test-kerberos",
    ),
    pytest.mark.skipif(
        shutil.which("kinit") is None, reason="needs kinit (Debian: apt-get install krb5-user)"
    ),
]

# No command may wait for a ticket that does not come; the slowest looks for YARN for 20 s.
SOON = 90.0


class Secure(Grid):
    """A sandbox with Kerberos; its shell has the tickets of one file, by default of none."""

    @property
    def realm(self) -> Realm:
        assert isinstance(self.sandbox, KerberosSandbox)
        return self.sandbox.realm

    @property
    def keytab(self) -> tuple[str, ...]:
        return ("--principal", self.realm.principal, "--keytab", str(self.realm.keytab))

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**{"KRB5CCNAME": "FILE:/nonexistent/tickets", **more})

    def kinit(self, cache: Path, *options: str) -> dict[str, str]:
        """Get a ticket; return the variable by which a shell finds it."""
        tickets = {"KRB5CCNAME": f"FILE:{cache}"}
        command = ("kinit", "-kt", str(self.realm.keytab), *options, self.realm.principal)
        got = self.run(*command, timeout=SOON, **tickets)
        assert got.returncode == 0, got.stderr
        return tickets

    @contextmanager
    def client(self, keytab: Keytab) -> Iterator[Client]:
        """A client of HDFS that shows tickets of a keytab, and is none of ours."""
        session = requests.Session()
        with using_realm(self.realm.configuration):
            session.auth = ticket_authentication(keytab)
            yield Client(self.sandbox.webhdfs, session=session, timeout=SOON)

    def lock(self, path: str) -> None:
        """Make a folder on HDFS that its administrator alone may enter."""
        with self.client(Keytab(full(HDFS), str(self.realm.services))) as administrator:
            administrator.makedirs(path, permission="700")

    def names(self, path: str) -> set[str]:
        """The names in a folder of HDFS, as its owner sees them."""
        with self.client(Keytab(self.realm.principal, str(self.realm.keytab))) as owner:
            return set(owner.list(path)) if owner.status(path, strict=False) else set()


@pytest.fixture(scope="module")
def secure(
    hadoop_jars: list[str], project: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secure]:
    root = tmp_path_factory.mktemp("kerberos")
    with KerberosSandbox(root, memory_mb=8192) as sandbox:
        yield Secure(sandbox, project / "build" / "tests")
    assert not sandbox.running()
    assert not working_below(root)


@pytest.fixture(scope="module")
def ticket(secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return secure.kinit(tmp_path_factory.mktemp("tickets") / "valid")


@pytest.fixture(scope="module")
def expired(secure: Secure, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A ticket that was good for five seconds."""
    tickets = secure.kinit(tmp_path_factory.mktemp("tickets") / "expired", "-l", "5s")
    time.sleep(6)
    return tickets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "large").write_bytes(os.urandom(3_000_000))
    (root / "small").write_bytes(b"x")
    return root


@pytest.mark.parametrize("login", ["ticket", "keytab"])
def test_files_go_and_come(
    secure: Secure, ticket: dict[str, str], folder: Path, tmp_path: Path, login: str
) -> None:
    """They arrive, are listed, come back, and are removed."""
    home, back = f"/tmp/by-{login}", tmp_path / "back"

    def grid(verb: str, *words: str) -> str:
        flags, held = ((), ticket) if login == "ticket" else (secure.keytab, {})
        done = secure.grid(verb, *flags, *words, timeout=SOON, **held)
        assert done.returncode == ExitCode.OK, done.stderr
        return done.stdout

    grid("put", f"{folder}/", home)
    grid("get", home, str(back))
    assert next(back.rglob("large")).read_bytes() == (folder / "deep" / "large").read_bytes()
    assert "small" in grid("ls", home)
    grid("rm", "--recursive", home)
    assert not secure.names(home)


def check_refusal(done: subprocess.CompletedProcess[str]) -> None:
    """One line that names the way in, and the code of storage."""
    # spark-submit writes what a Python driver says to its own standard output.
    told = done.stdout + done.stderr
    assert done.returncode == ExitCode.STORAGE, told
    errors = [line for line in told.splitlines() if line.startswith("NotAuthenticatedError")]
    assert len(errors) == 1, told[-6000:]
    assert "kinit" in errors[0]
    assert "keytab" in errors[0]
    assert "Traceback" not in told


@pytest.mark.parametrize("tickets", ["none", "expired"])
@pytest.mark.parametrize(
    "words",
    [
        *("put {folder} /tmp/stranger", "get /tmp {folder}"),
        *("ls /tmp/stranger", "rm /tmp/stranger"),
        *("submit evaluate --data hdfs:///tmp/tiles", "status"),
        *("logs application_1_0001", "cancel application_1_0001"),
    ],
)
def test_without_a_valid_ticket_nothing_goes(
    secure: Secure, request: pytest.FixtureRequest, folder: Path, words: str, tickets: str
) -> None:
    held = {} if tickets == "none" else request.getfixturevalue("expired")
    check_refusal(secure.grid(*words.format(folder=folder).split(), timeout=SOON, **held))
    assert "stranger" not in secure.names("/tmp")


def test_the_keys_of_somebody_else_are_no_keys(
    secure: Secure, folder: Path, tmp_path: Path
) -> None:
    forged = tmp_path / "forged.keytab"
    content = bytearray(secure.realm.keytab.read_bytes())
    content[-6] ^= 0xFF  # within the key
    forged.write_bytes(content)
    done = secure.grid(
        *("put", "--principal", secure.realm.principal, "--keytab", str(forged)),
        *(str(folder), "/tmp/stranger"),
        timeout=SOON,
    )
    assert done.returncode == ExitCode.STORAGE, done.stderr
    assert str(forged) in done.stderr
    assert "stranger" not in secure.names("/tmp")


def test_a_name_is_believed_at_no_door(secure: Secure, folder: Path) -> None:
    """The servers refuse, whatever the client does: ?user.name= was let in by default."""
    done = secure.grid(
        "put",
        str(folder),
        "/tmp/stranger",
        timeout=SOON,
        HADOOP_CONF_DIR="",
        WEBHDFS_URL=secure.sandbox.webhdfs,
        HADOOP_USER_NAME="hdfs",
    )
    check_refusal(done)
    assert "--kerberos" in done.stderr
    hdfs, yarn = secure.sandbox.webhdfs, secure.sandbox.yarn
    for name in ("alice", "hdfs", secure.realm.user):
        who = {"user.name": name}
        for method, url in (
            ("GET", f"{hdfs}/webhdfs/v1/?op=LISTSTATUS"),
            ("PUT", f"{hdfs}/webhdfs/v1/tmp/stranger?op=MKDIRS"),
            ("PUT", f"{hdfs}/webhdfs/v1/tmp/stranger?op=CREATE"),
            ("GET", f"{hdfs}/webhdfs/v1/?op=GETDELEGATIONTOKEN"),
            ("GET", f"{hdfs}/jmx"),
            ("GET", f"{yarn}/ws/v1/cluster/apps"),
            ("POST", f"{yarn}/ws/v1/cluster/apps/new-application"),
            ("GET", f"{yarn}/logs/"),
        ):
            answer = requests.request(method, url, params=who, timeout=SOON, allow_redirects=False)
            assert answer.status_code == 401, (method, url, answer.status_code)
    assert "stranger" not in secure.names("/tmp")


def test_the_server_itself_refuses_a_ticket_that_is_over(secure: Secure, tmp_path: Path) -> None:
    """What is sent in time is taken; sent again when the ticket is over, it is not."""
    url = f"{secure.sandbox.webhdfs}/webhdfs/v1/tmp?op=LISTSTATUS"
    shown = secure.run(
        sys.executable,
        "-c",
        "import base64, gssapi; name = gssapi.Name('HTTP@localhost', "
        "gssapi.NameType.hostbased_service); print(base64.b64encode("
        "gssapi.SecurityContext(name=name, usage='initiate', "
        "mech=gssapi.OID.from_int_seq('1.3.6.1.5.5.2')).step()).decode())",
        timeout=SOON,
        **secure.kinit(tmp_path / "short", "-l", "5s"),
    )
    assert shown.returncode == 0, shown.stderr
    headers = {"Authorization": f"Negotiate {shown.stdout.strip()}"}
    assert requests.get(url, headers=headers, timeout=SOON).status_code == 200
    time.sleep(6 + CLOCK_SECONDS)
    late = requests.get(url, headers=headers, timeout=SOON)
    assert late.status_code in (401, 403), late.status_code


def shell(secure: Secure, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Hadoop's own client, over RPC."""
    jars = str(SPARK_HOME / "jars" / "*")
    conf = secure.sandbox.environment()["HADOOP_CONF_DIR"]
    command = ("java", secure.realm.java_option, "-cp", f"{conf}:{jars}")
    main = "org.apache.hadoop.fs.FsShell"
    return secure.run(*command, main, *words, timeout=SOON, **environment)


def test_hadoops_own_protocol_wants_a_ticket(
    secure: Secure, ticket: dict[str, str], expired: dict[str, str]
) -> None:
    assert shell(secure, "-ls", "/tmp", **ticket).returncode == 0
    for tickets in ({}, expired):
        refused = shell(secure, "-mkdir", "/tmp/stranger", HADOOP_USER_NAME="hdfs", **tickets)
        assert refused.returncode != 0
        assert "Client cannot authenticate via" in refused.stderr
    assert "stranger" not in secure.names("/tmp")


@pytest.fixture(scope="module")
def images(secure: Secure, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Six images on HDFS, in a folder where others have a place of their own."""
    secure.lock("/tmp/locked")
    few = tmp_path_factory.mktemp("few")
    for path in first_samples(samples):
        (few / path.parent.name).mkdir(exist_ok=True)
        shutil.copy(path, few / path.parent.name)
    sent = secure.grid("put", *secure.keytab, f"{few}/", "/tmp/raw", timeout=SOON)
    assert sent.returncode == ExitCode.OK, sent.stderr
    return "/tmp/raw"


#: Where a job's driver and executors run.
LOCAL = ("--master", "local[2,4]")
CLIENT = ("--master", "yarn", "--deploy-mode", "client")
CLUSTER = ("--master", "yarn", "--deploy-mode", "cluster")


def spark_submit(
    secure: Secure, where: tuple[str, ...], *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return secure.run(
        *(str(SPARK_HOME / "bin" / "spark-submit"), *where),
        *("--driver-memory", "512m", "--executor-memory", "512m", "--num-executors", "2"),
        *("--conf", "spark.ui.enabled=false", *words),
        timeout=400.0,
        **environment,
    )


def tile(
    secure: Secure, where: tuple[str, ...], output: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return spark_submit(
        secure,
        where,
        *(str(run_verb.__file__), "tile", "--input", "hdfs:///tmp/raw"),
        *("--output", f"hdfs://{output}", "--tile", "64", "--overlap", "0", "--angles", "0"),
        *("--split", "0.7:0.3"),
        **environment,
    )


def train(
    secure: Secure,
    project: Path,
    where: tuple[str, ...],
    data: str,
    output: str,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    return spark_submit(
        secure,
        (*where, "--py-files", str(project / "tests" / "jobs" / "small_net.py")),
        *(str(run_verb.__file__), "train", "--data", f"hdfs://{data}", "--split", "train"),
        *("--model", "small_net:build", "--features", "image", "--trainer", "ADAG"),
        *("--batch-size", "8", "--workers", "2", "--output", f"hdfs://{output}"),
        **environment,
    )


@pytest.mark.tensorflow
@pytest.mark.parametrize("mode", ["local", "client", "cluster"])
@pytest.mark.parametrize("login", ["ticket", "keytab"])
def test_tiling_and_training(
    secure: Secure,
    project: Path,
    images: str,
    ticket: dict[str, str],
    mode: str,
    login: str,
) -> None:
    where = {"local": LOCAL, "client": CLIENT, "cluster": CLUSTER}[mode]
    where = (*where, *(secure.keytab if login == "keytab" else ()))
    held = ticket if login == "ticket" else {}
    tiles, run = f"/tmp/tiles-{mode}-{login}", f"/tmp/run-{mode}-{login}"
    tiled = tile(secure, where, tiles, **held)
    assert tiled.returncode == 0, tiled.stdout[-3000:] + tiled.stderr[-6000:]
    trained = train(secure, project, where, tiles, run, **held)
    assert trained.returncode == 0, trained.stdout[-3000:] + trained.stderr[-6000:]
    assert "run.json" in secure.names(run)


@pytest.mark.parametrize("tickets", ["none", "expired"])
@pytest.mark.parametrize("where", [LOCAL, CLIENT, CLUSTER], ids=["local", "client", "cluster"])
def test_without_a_valid_ticket_no_job_runs(
    secure: Secure,
    images: str,
    request: pytest.FixtureRequest,
    where: tuple[str, ...],
    tickets: str,
) -> None:
    held = {} if tickets == "none" else request.getfixturevalue("expired")
    began = time.monotonic()
    done = tile(secure, where, "/tmp/stolen", **held)
    assert time.monotonic() - began < SOON
    assert done.returncode != 0
    if where == CLUSTER:
        # Spark's own submission ends, before any line of ours.
        assert "Client cannot authenticate via" in done.stderr
    else:
        check_refusal(done)
    assert "stolen" not in secure.names("/tmp")


@pytest.mark.parametrize("verb", ["status", "logs", "cancel"])
def test_with_a_keytab_yarn_tells_what_it_knows(secure: Secure, verb: str) -> None:
    done = secure.grid(verb, *secure.keytab, "application_1_0001", timeout=SOON)
    assert done.returncode == ExitCode.CLUSTER, done.stderr
    assert "does not know" in done.stderr


@pytest.mark.tensorflow
def test_submit_with_a_keytab_waits_for_the_end_in_cluster_mode(
    secure: Secure, images: str
) -> None:
    done = secure.grid(
        *("submit", "--deploy-mode", "cluster", *secure.keytab),
        *("--executor-memory", "512m", "--driver-memory", "512m"),
        *("tile", "--input", images, "--output", "/tmp/tiles-submitted"),
        *("--tile", "64", "--overlap", "0", "--angles", "0", "--split", "0.7:0.3"),
        timeout=600,
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert "_versions" in secure.names("/tmp/tiles-submitted")
