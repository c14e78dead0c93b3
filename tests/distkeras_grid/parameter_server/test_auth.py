import pytest
from msgspec.structs import replace

from distkeras_grid.errors import AuthenticationError
from distkeras_grid.parameter_server.auth import (
    new_key,
    new_nonce,
    prove,
    session_keys,
    verify,
)
from distkeras_grid.parameter_server.messages import DriverHello, Endpoint, WorkerHello

HELLO = WorkerHello("run", 1, 2, 10, new_nonce())
KEY, NONCE = new_key(), new_nonce()


def test_a_proof_verifies():
    verify(KEY, Endpoint.CLIENT, HELLO, NONCE, prove(KEY, Endpoint.CLIENT, HELLO, NONCE))


@pytest.mark.parametrize(
    ("key", "side", "hello", "nonce"),
    [
        (new_key(), Endpoint.CLIENT, HELLO, NONCE),
        (KEY, Endpoint.SERVER, HELLO, NONCE),
        (KEY, Endpoint.CLIENT, replace(HELLO, run="other"), NONCE),
        (KEY, Endpoint.CLIENT, replace(HELLO, seat=0), NONCE),
        (KEY, Endpoint.CLIENT, replace(HELLO, attempt=3), NONCE),
        (KEY, Endpoint.CLIENT, replace(HELLO, nonce=new_nonce()), NONCE),
        (KEY, Endpoint.CLIENT, DriverHello("run", 10, HELLO.nonce), NONCE),
        (KEY, Endpoint.CLIENT, HELLO, new_nonce()),
    ],
    ids=["key", "role", "run", "seat", "attempt", "client nonce", "kind", "server nonce"],
)
def test_a_proof_is_good_for_one_conversation_and_one_side(key, side, hello, nonce):
    with pytest.raises(AuthenticationError, match="does not hold the key"):
        verify(key, side, hello, nonce, prove(KEY, Endpoint.CLIENT, HELLO, NONCE))


@pytest.mark.parametrize("proof", ["", "0" * 64, "ü", "\ud800"])
def test_other_proofs_are_refused(proof):
    with pytest.raises(AuthenticationError):
        verify(KEY, Endpoint.CLIENT, HELLO, NONCE, proof)


@pytest.mark.parametrize(
    ("key", "hello", "nonce"),
    [
        (new_key(), HELLO, NONCE),
        (KEY, replace(HELLO, seat=0), NONCE),
        (KEY, replace(HELLO, nonce=new_nonce()), NONCE),
        (KEY, DriverHello("run", 10, HELLO.nonce), NONCE),
        (KEY, HELLO, new_nonce()),
    ],
    ids=["key", "seat", "client nonce", "kind", "server nonce"],
)
def test_each_conversation_and_direction_has_a_key_of_its_own(key, hello, nonce):
    ours, theirs = session_keys(KEY, HELLO, NONCE), session_keys(key, hello, nonce)
    assert ours == session_keys(KEY, HELLO, NONCE)
    keys = [*ours.values(), *theirs.values()]
    assert len(set(keys)) == 4
    assert {len(each) for each in keys} == {32}
