"""Where the parameter server listens, and where it is found."""

import socket

import pytest

from distkeras_grid.errors import ServerUnreachableError
from distkeras_grid.parameter_server.settings import BindAddress
from distkeras_grid.spark.addresses import choose_place, open_for_probe, port_note


def choose(master="yarn", host=None, port=0, **settings):
    named = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return choose_place(master, named.get, "this-host", host, port)


def test_on_a_cluster_it_is_where_sparks_driver_is():
    assert choose(driver_host="edge1") == BindAddress("edge1", "edge1", 0, 16)
    assert choose().advertised_host == "this-host"


def test_behind_nat_the_two_addresses_differ():
    place = choose(driver_host="172.17.0.2", driver_bindAddress="172.17.0.2", host="outer.example")
    assert (place.bind_host, place.advertised_host) == ("172.17.0.2", "outer.example")


def test_in_local_mode_nobody_else_reaches_it_unless_asked():
    assert choose("local[2]", driver_host="edge1").bind_host == "127.0.0.1"
    assert choose("local[2]", host="10.0.0.1").bind_host == "10.0.0.1"


def test_spark_says_how_many_ports_are_tried():
    assert choose(port=7000, port_maxRetries="3").port_retries == 3


def test_an_address_of_another_host_is_an_error_with_what_to_set():
    place = BindAddress("192.0.2.77", "192.0.2.77", 0, 0)
    with pytest.raises(ServerUnreachableError, match=r"192\.0\.2\.77:0: .*bindAddress"):
        open_for_probe(place)


def test_a_port_that_is_taken_leads_to_the_next():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with open_for_probe(BindAddress("127.0.0.1", "127.0.0.1", port, 8)) as probe:
            assert port < probe.port <= port + 8
            with socket.create_connection(("127.0.0.1", probe.port), 5) as stream:
                assert stream.makefile().read() == probe.token
            assert port_note(port, probe.port).endswith(f"listens on {probe.port}.")
        with pytest.raises(ServerUnreachableError, match=f"cannot listen on 127.0.0.1:{port}: "):
            open_for_probe(BindAddress("127.0.0.1", "127.0.0.1", port, 0))


def test_a_probe_that_has_ended_leaves_the_port_free():
    with (
        open_for_probe(BindAddress("127.0.0.1", "127.0.0.1", 0, 0)) as first,
        socket.create_connection(("127.0.0.1", first.port), 5) as stream,
    ):
        stream.recv(64)
    with open_for_probe(BindAddress("127.0.0.1", "127.0.0.1", first.port, 0)) as second:
        assert second.port == first.port
        assert second.token != first.token


def test_only_another_port_than_asked_for_is_said():
    assert port_note(0, 41234) is None
    assert port_note(7000, 7000) is None
