"""How long a command looks for a server."""

import socket

import pytest

from forerun.base.address import Address
from forerun.client.server import NoServerError, ServerClient


@pytest.mark.parametrize(
    ("host", "least", "most"), [("127.0.0.1", 0, 0.5), ("::", 0, 0.5), ("203.0.113.1", 2, 5)]
)
def test_one_that_is_far_away_is_given_more_time(monkeypatch, host, least, most):
    """Nobody waits where there is no server; a first packet that is lost takes a second."""
    given = []

    def connect(*arguments):
        given.append(arguments[1])
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(NoServerError, match="no server answers at"):
        ServerClient(Address(host)).version()
    (waits_s,) = given
    assert least < waits_s < most
