"""The address at which the parameter server listens, and the one that executors connect to."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.parameter_server.transports import TokenServer, cannot_listen
from distkeras_grid.spark.session import local_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own default of spark.port.maxRetries.
PORT_RETRIES = "16"


def place_server(spark: SparkSession, master_host: str | None, master_port: int) -> BindAddress:
    """Return the server's place in a session; see `choose_place`."""
    context = spark.sparkContext
    setting = context.getConf().get
    return choose_place(str(context.master), setting, platform.node(), master_host, master_port)


def choose_place(
    master: str,
    setting: Callable[[str], str | None],
    node: str,
    master_host: str | None,
    master_port: int,
) -> BindAddress:
    """Return the server's place; by default only where Spark's own driver listens.

    In local mode no other host needs to reach it. In YARN's cluster mode Spark sets
    ``spark.driver.host`` to the host of the driver's container.

    `setting`: returns a Spark setting, None if it is not set.
    """
    retries = int(setting("spark.port.maxRetries") or PORT_RETRIES)
    if master_host is None and local_cores(master) is not None:
        return BindAddress("127.0.0.1", "127.0.0.1", master_port, retries)
    advertised = master_host or setting("spark.driver.host") or node
    bind = setting("spark.driver.bindAddress") or advertised
    return BindAddress(bind, advertised, master_port, retries)


def open_for_probe(place: BindAddress) -> TokenServer:
    """Listen where the server will, for executors that test the connection."""
    try:
        return TokenServer(place.bind_host, place.port, place.port_retries)
    except OSError as error:
        words = cannot_listen(place.bind_host, place.port, place.port_retries, error)
        raise ServerUnreachableError(words) from error


def port_note(place_port: int, taken_port: int) -> str | None:
    """Return a message if the port is not the one asked for, None otherwise."""
    if place_port in (0, taken_port):
        return None
    return f"master_port {place_port} is taken: the parameter server listens on {taken_port}."
