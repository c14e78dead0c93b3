"""Names of local files in Spark's JVM, which reads them in the encoding of its locale.

A file whose name it cannot decode does not exist for Java: listings pass over it without an error.
"""

from __future__ import annotations

import locale
import os

from distkeras_grid.errors import StorageError

UTF8 = "UTF-8"
#: Every current Linux has it.
LOCALE = "C.UTF-8"


def use_utf8() -> None:
    """Let the JVMs and processes that this one starts read the names of files as UTF-8.

    Schedulers start commands with ``LC_ALL=C``, and ssh passes on locales that a host lacks, which
    is the same. Python itself reads names as UTF-8 then, and Java only ASCII.
    """
    if locale.nl_langinfo(locale.CODESET).upper() not in (UTF8, "UTF8"):
        os.environ["LC_ALL"] = LOCALE


def unreadable_name(path: str, encoding: str) -> StorageError:
    """Return the error for a local path that a JVM cannot name."""
    return StorageError(
        f"Spark's Java cannot read the name of {path}: it reads names of local files as "
        f"{encoding}. Start Python or spark-submit with LC_ALL={LOCALE} in its environment, and on "
        f"a cluster its executors (spark.executorEnv.LC_ALL={LOCALE}), too."
    )


def check_names_below(folder: str, encoding: str) -> None:
    """Refuse a local folder if it holds names that Java passes over."""
    for here, folders, files in os.walk(folder.encode()):
        # Those that Spark hides are not read anyway.
        folders[:] = [name for name in folders if name[:1] not in (b".", b"_")]
        for name in sorted((*folders, *files)):
            if name[:1] not in (b".", b"_") and not is_readable(name, encoding):
                path = printable(os.path.join(here, name))
                if encoding == UTF8:
                    raise StorageError(
                        f"The name of {path} is not UTF-8, and Spark would pass over it. Rename it."
                    )
                raise unreadable_name(path, encoding)


def printable(path: bytes) -> str:
    r"""Return a path as text; bytes that are not UTF-8 are escaped.

    Examples
    --------
    >>> printable("Körnig".encode("latin-1"))
    'K\\xf6rnig'
    """
    return path.decode(errors="backslashreplace")


def is_readable(name: bytes, encoding: str = UTF8) -> bool:
    """Tell whether Java sees a file of this name.

    Examples
    --------
    >>> name = "Körnig".encode()
    >>> is_readable(name, "UTF-8"), is_readable(name, "ANSI_X3.4-1968")
    (True, False)
    >>> is_readable("Körnig".encode("latin-1"))
    False
    """
    if encoding != UTF8:
        return name.isascii()
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
