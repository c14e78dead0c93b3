"""Several servers within the test's process, each with a slice of the center, and their clients."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from distkeras_grid.parameter_server.auth import driver_key, new_key, seat_key
from distkeras_grid.parameter_server.driver_client import DriverClient
from distkeras_grid.parameter_server.service import Service
from distkeras_grid.parameter_server.sharded_client import ShardedClient
from distkeras_grid.parameter_server.shards import cut, shard_settings


class Several:
    """Running services, one for each shard; a context manager."""

    def __init__(self, settings, servers, start=0.0):
        self.settings, self.key = settings, new_key()
        self.shards = cut(settings.spec.layout, servers)
        self.start = np.empty(settings.spec.size, np.float32)
        self.start[:] = start
        self.stack = ExitStack()
        self.own = [shard_settings(settings, shard) for shard in self.shards]
        self.services = []
        for own, shard in zip(self.own, self.shards, strict=True):
            service = Service(own, self.start[shard.span].copy(), self.key)
            self.stack.callback(service.close)
            self.services.append(service)
        self.addresses = [service.address for service in self.services]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stack.close()

    def worker(self, seat=0, attempt=0, addresses=None):
        client = ShardedClient.connect(
            addresses or self.addresses,
            seat_key(self.key, seat),
            *(self.settings.run, seat, attempt, self.settings.spec, 5),
        )
        self.stack.callback(client.close)
        return client

    def started(self, rows=100, **options):
        client = self.worker(**options)
        client.ready(rows)
        return client

    def drivers(self):
        """A driver's client of each server."""
        found = []
        for service, own in zip(self.services, self.own, strict=True):
            key, size = driver_key(self.key), own.spec.size
            found.append(DriverClient.connect(service.address, key, own.run, size, 5))
            self.stack.callback(found[-1].close)
        return found

    def center(self):
        return np.concatenate([driver.center() for driver in self.drivers()])
