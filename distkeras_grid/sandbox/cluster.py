"""The sandbox: start, query and stop HDFS and YARN on this machine."""

from __future__ import annotations

import errno
import getpass
import json
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import msgspec

from distkeras_grid import fsync
from distkeras_grid.errors import UNREADABLE, BusyError, ConfigurationError, SandboxError
from distkeras_grid.lock_files import lock_file
from distkeras_grid.sandbox import configuration, daemons, readiness
from distkeras_grid.sandbox.class_path import daemon_class_path
from distkeras_grid.sandbox.configuration import HOST, Ports, SandboxLayout
from distkeras_grid.sandbox.daemons import Daemon
from distkeras_grid.sandbox.readiness import WebUI

# Some 20 s; on a machine with ten times as much to do as it has cores, two minutes.
START_SECONDS = 300.0
LOOPBACK = "127.0.0.1"
#: In the order in which they start.
KINDS = ("namenode", "datanode", "resourcemanager", "nodemanager")
FORMAT = ("-format", "-nonInteractive", "-force")


@dataclass(frozen=True)
class SandboxState:
    """The content of ``sandbox.json``, from which a sandbox is found and started again."""

    ports: Ports  # They stay the same as long as the data do: paths name them
    # datanodes and memory_mb and cores: As for `Sandbox`
    datanodes: Annotated[int, msgspec.Meta(ge=1)]
    memory_mb: int
    cores: int
    daemons: tuple[Daemon, ...] = ()  # Started and not stopped

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SandboxState:
        """Read what `to_json` wrote; refuse what no sandbox can have written."""
        try:
            return msgspec.json.decode(text, type=cls)
        except UNREADABLE as error:
            raise SandboxError(
                "The sandbox was started by another version of distkeras_grid, or sandbox.json is "
                f"damaged ({error!r}). Stop it with that version, or end its processes and delete "
                "sandbox.json."
            ) from error


class Sandbox:
    """A NameNode, DataNodes, a ResourceManager and a NodeManager, each a process of its own.

    Parameters
    ----------
    folder : path, optional
        Keeps data, configuration and logs, also after a stop. By default a new one, which goes
        when the sandbox stops.
    datanodes : int, default 1
        DataNodes; a block has as many copies, up to three.
    memory_mb : int, optional
        What YARN may hand out, in megabytes; default half of this machine's memory.
    cores : int, optional
        Virtual cores that YARN may hand out; default 8. YARN's scheduler counts memory only.
    say : callable, optional
        Is told what goes on.

    Raises
    ------
    ConfigurationError
        If there is no DataNode, or too little memory for a container.

    Examples
    --------
    >>> with Sandbox() as grid:                                          # doctest: +SKIP
    ...     print(grid.hdfs)
    hdfs://localhost:40713
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        datanodes: int = 1,
        memory_mb: int | None = None,
        cores: int = 8,
        say: Callable[[str], object] | None = None,
    ) -> None:
        if datanodes < 1:
            raise ConfigurationError(f"datanodes must be at least 1. Received: {datanodes}.")
        memory_mb = memory_mb or configuration.default_memory_mb()
        if memory_mb < 1024:
            raise ConfigurationError(
                f"memory_mb must be at least 1024, or Spark does not run. Received: {memory_mb}."
            )
        self._temporary = folder is None
        root = tempfile.mkdtemp(prefix="sandbox-") if folder is None else folder
        self.layout = SandboxLayout(Path(root).resolve())
        self._wanted = (datanodes, memory_mb, cores)
        self._say = say or (lambda _: None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def state(self) -> SandboxState:
        """The state that the folder records.

        Raises
        ------
        SandboxError
            If there is no sandbox in the folder.
        """
        try:
            return SandboxState.from_json(self.layout.state.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise SandboxError(
                f"There is no sandbox in {self.layout.root}. Start one: distkeras-grid sandbox "
                "start."
            ) from error

    @property
    def hdfs(self) -> str:
        """Address of HDFS, such as ``hdfs://localhost:40713``."""
        return f"hdfs://{HOST}:{self.state.ports.namenode}"

    @property
    def webhdfs(self) -> str:
        """Address of WebHDFS and of the NameNode's page."""
        return f"http://{HOST}:{self.state.ports.namenode_http}"

    @property
    def yarn(self) -> str:
        """Address of YARN's page and REST interface."""
        return f"http://{HOST}:{self.state.ports.resourcemanager_http}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables with which Spark and Hadoop's clients find it."""
        return configuration.environment(self.layout)

    def start(self) -> None:
        """Start all daemons, and wait until a file was kept and a container ran.

        A folder that has been a sandbox before keeps its data and its ports.

        Raises
        ------
        BusyError
            If another command starts or stops it now.
        SandboxError
            If it runs already, something is missing, or a daemon does not come up; with the end of
            its log. Nothing is left running then.
        """
        with self._alone(new=True):
            self._refuse_if_running()
            self._begin()

    def start_anew(self) -> None:
        """Stop all daemons, and start them with the memory and the DataNodes that they had.

        No other command can start or stop it in between.

        Raises
        ------
        BusyError, SandboxError
            As from `start`, or if there is no sandbox in the folder.
        """
        with self._alone():
            state = self.state
            self._wanted = (state.datanodes, state.memory_mb, state.cores)
            self._say(f"stopping {sum(self.status().values())} daemons (up to half a minute)")
            self._end()
            self._begin()

    def _begin(self) -> None:
        """Start all daemons; nothing is left running if one does not come up."""
        with ExitStack() as undo:
            self._say("looking for Hadoop's jars (64 MB are fetched the first time)")
            path = daemon_class_path()
            deadline = time.monotonic() + START_SECONDS
            undo.callback(self._abandon)
            if self.layout.state.exists():
                # Daemons that a killed start has left.
                self._end()
            self._configure()
            self._start_all(path, deadline)
            undo.pop_all()

    def stop(self) -> None:
        """End all daemons and containers; the data stay, unless the folder was made here.

        Raises
        ------
        BusyError
            If another command starts or stops it now.
        SandboxError
            If a process outlives being killed.
        """
        if not self.layout.state.exists():
            self._discard()
            return
        with self._alone():
            self._end()
            self._discard()

    def delete(self) -> list[Path]:
        """Stop it, and delete its data, configuration and logs for good.

        Returns
        -------
        list of Path
            What else is in its folder, and stays there; otherwise the folder goes, too.

        Raises
        ------
        BusyError, SandboxError
            As from `stop`, or if there is no sandbox in the folder.
        """
        root = self.layout.root
        with self._alone():
            self._end()
            for path in self.layout.all:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self.layout.lock.unlink()
            try:
                root.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                return sorted(root.iterdir())
            return []

    def repair(self) -> list[str]:
        """Start the daemons that have ended while others still run.

        Returns
        -------
        list of str
            Their names, in the order in which they were started.

        Raises
        ------
        BusyError
            If another command starts or stops it now.
        SandboxError
            If it is stopped, or a daemon does not come up.
        """
        with self._alone():
            status = self.status()
            if not any(status.values()):
                raise SandboxError(
                    f"No daemon of the sandbox in {self.layout.root} runs. Start it: "
                    "distkeras-grid sandbox start."
                )
            ended = [name for name, runs in status.items() if not runs]
            ended.sort(key=lambda name: KINDS.index(name.partition("-")[0]))
            for name in ended:
                self._say(f"starting {name}")
                self._restart(name)
            return ended

    def status(self) -> dict[str, bool]:
        """Return the name of each daemon, and whether it runs."""
        return {daemon.name: daemon.process() is not None for daemon in self.state.daemons}

    def running(self) -> bool:
        """Tell whether any daemon runs."""
        return any(self.status().values())

    def daemon(self, name: str) -> Daemon:
        """Return a daemon by its name, such as ``datanode-1``.

        Raises
        ------
        SandboxError
            If none has that name.
        """
        known = {daemon.name: daemon for daemon in self.state.daemons}
        if name not in known:
            raise SandboxError(
                f"There is no such daemon. Received: {name!r}. Known: {', '.join(known)}."
            )
        return known[name]

    def restart(self, name: str) -> None:
        """Start a daemon that has ended, or end it and start it again.

        Returns when its master counts it, and HDFS has left its safe mode.

        Raises
        ------
        BusyError
            If another command starts or stops daemons now.
        SandboxError
            If none has that name, or it does not come up.
        """
        _ = self.daemon(name)
        with self._alone():
            self._restart(name)

    @contextmanager
    def _alone(self, *, new: bool = False) -> Iterator[None]:
        """Hold the lock of the folder; the kernel frees it when this process ends.

        `new`: make the folder where it is missing. Otherwise there must be a sandbox in it.
        """
        make = partial(self.layout.root.mkdir, parents=True, exist_ok=True)
        file = lock_file(self.layout.lock, make if new else lambda: self.state)
        if file is None:
            raise BusyError(
                f"Another command starts or stops the sandbox in {self.layout.root}. Wait until it "
                "has ended, and look: distkeras-grid sandbox status."
            )
        with file:
            yield

    def _refuse_if_running(self) -> None:
        if not self.layout.state.exists():
            return
        if not self.running():
            return
        ended = [name for name, runs in self.status().items() if not runs]
        if ended:
            raise SandboxError(
                f"The sandbox in {self.layout.root} runs, but without {', '.join(ended)}. Start "
                "what is missing: distkeras-grid sandbox repair."
            )
        raise SandboxError(
            f"The sandbox in {self.layout.root} runs already. Use it, or start it anew: "
            "distkeras-grid sandbox restart."
        )

    def _abandon(self) -> None:
        """Leave nothing of a start that failed, but its logs where the folder is the user's."""
        if self.layout.state.exists():
            self._end()
        self._discard()

    def _discard(self) -> None:
        """Delete the folder if it was made here."""
        if self._temporary:
            shutil.rmtree(self.layout.root, ignore_errors=True)

    def _end(self) -> None:
        """End all daemons and containers, and delete what only they need."""
        state = self.state
        daemons.stop(state.daemons, self.layout.containers, self.layout.scratch)
        self._keep(replace(state, daemons=()))
        # Archives of applications, which a NodeManager deletes when it starts: gigabytes.
        for folder in (self.layout.containers, self.layout.scratch):
            shutil.rmtree(folder, ignore_errors=True)

    def _start_all(self, path: list[str], deadline: float) -> None:
        self._start_hdfs(path, deadline)
        self._start_yarn(path, deadline)

    def _restart(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        path = daemon_class_path()
        daemons.stop([self.daemon(name)])
        known: set[str] = set()
        if name.startswith("datanode"):
            known = self._pages().live_datanodes()
        self._launch(name, path)
        if name == "namenode" or name.startswith("datanode"):
            self._wait_for_hdfs(deadline, known)
        else:
            self._wait_for_yarn(deadline)

    def _pages(self) -> WebUI:
        ports = self.state.ports
        return WebUI(f"{HOST}:{ports.namenode_http}", f"{HOST}:{ports.resourcemanager_http}")

    def _configure(self) -> None:
        """Write the files."""
        layout = self.layout
        known = self.state.ports if layout.state.exists() else None
        state = SandboxState(known or free_ports(), *self._wanted)
        self._keep(state)
        spec = find_spec("pyspark")
        pyspark = Path(str(spec.origin if spec else "")).parent
        written = configuration.files(
            state.ports,
            layout,
            datanodes=state.datanodes,
            memory_mb=state.memory_mb,
            cores=state.cores,
            pyspark=pyspark,
        )
        for file, content in written.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        layout.events.mkdir(exist_ok=True)

    def _start_hdfs(self, path: list[str], deadline: float) -> None:
        count = self.state.datanodes
        self._say(f"starting HDFS: a NameNode and {count} DataNode{'s' * (count > 1)}")
        layout = self.layout
        if not layout.namenode().exists():
            line = self._command(path, daemons.NAMENODE, *FORMAT)
            daemons.run("Formatting the NameNode", line, layout.logs / "format.log")
        self._launch("namenode", path)
        for number in range(count):
            self._launch(f"datanode-{number}", path)
        self._wait_for_hdfs(deadline)
        self._pages().make_homes(getpass.getuser())
        self._pages().write_and_read()

    def _start_yarn(self, path: list[str], deadline: float) -> None:
        self._say("starting YARN: a ResourceManager and a NodeManager")
        self._launch("resourcemanager", path)
        self._launch("nodemanager", path)
        self._wait_for_yarn(deadline)
        self._say("running a container")
        self._pages().run_container(deadline)

    def _wait_for_hdfs(self, deadline: float, before: Set[str] = frozenset()) -> None:
        """Wait until all DataNodes are counted, and one more than `before` if some were."""
        state = self.state
        pages = self._pages()
        kinds = ("namenode", "datanode")
        started = [d for d in state.daemons if d.name.split("-")[0] in kinds]
        alive = [daemon for daemon in started if daemon.process() is not None]
        datanodes = sum(daemon.name.startswith("datanode") for daemon in alive)
        readiness.wait_for(
            f"HDFS with {datanodes} DataNodes",
            lambda: (
                len(live := pages.live_datanodes()) >= datanodes
                and not (before and live <= before)
                and not pages.in_safe_mode()
            ),
            alive,
            deadline,
        )

    def _wait_for_yarn(self, deadline: float) -> None:
        pages = self._pages()
        readiness.wait_for(
            "YARN with a NodeManager",
            lambda: pages.active_nodemanagers() >= 1,
            [self.daemon("resourcemanager"), self.daemon("nodemanager")],
            deadline,
        )

    def _launch(self, name: str, path: list[str]) -> None:
        """Start one daemon of Hadoop."""
        layout = self.layout
        kind, _, number = name.partition("-")
        main = {
            "namenode": daemons.NAMENODE,
            "datanode": daemons.DATANODE,
            "resourcemanager": daemons.RESOURCEMANAGER,
            "nodemanager": daemons.NODEMANAGER,
        }[kind]
        arguments: tuple[str, ...] = ()
        if kind == "datanode":
            blocks = layout.datanode(int(number)).as_uri()
            arguments = ("-D", f"dfs.datanode.data.dir={blocks}")
        self._run_on(name, self._command(path, main, *arguments))

    def _run_on(self, name: str, line: list[str]) -> None:
        """Start a process, and note it before anything else can fail.

        If this process is killed in between, `_end` finds the new one by its command line.
        """
        daemon = daemons.start(name, line, self.layout.logs / f"{name}.log")
        state = self.state
        others = tuple(other for other in state.daemons if other.name != name)
        self._keep(replace(state, daemons=(*others, daemon)))

    def _command(self, path: list[str], main: str, *arguments: str) -> list[str]:
        self.layout.scratch.mkdir(exist_ok=True)
        path = [str(self.layout.daemons), str(self.layout.client), *path]
        return daemons.command(path, main, *arguments, scratch=self.layout.scratch)

    def _keep(self, state: SandboxState) -> None:
        written = self.layout.state.with_suffix(".new")
        written.write_text(state.to_json(), encoding="utf-8")
        fsync.replace(written, self.layout.state)


def free_ports() -> Ports:
    """Return free ports outside the range of outgoing connections.

    A port that the system hands out itself (from 32768 on Linux, 49152 on macOS) may belong to
    somebody else by the time its daemon comes to it: each connection takes one, and so does each
    listener on port 0, of which a DataNode has three.
    """
    free: list[Any] = []
    wanted = len(Ports.names())
    for number in random.sample(configuration.PORTS, len(configuration.PORTS)):
        if can_bind(number):
            free.append(number)
        if len(free) == wanted:
            return Ports(**dict(zip(Ports.names(), free, strict=True)))
    raise SandboxError(
        f"Only {len(free)} ports from {configuration.PORTS.start} to {configuration.PORTS.stop} "
        f"are free on {HOST}, and a sandbox needs {wanted}. Stop what uses them."
    )


def can_bind(port: int) -> bool:
    """Tell whether a daemon could listen on a port now."""
    with socket.socket() as trial:
        # As Hadoop's servers bind: what waits for the last packets of the past does not count.
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def default_folder() -> Path:
    """Return where the command line keeps its sandbox."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "distkeras_grid" / "sandbox"
