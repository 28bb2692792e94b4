"""Bodies are bounded in bytes and in patience."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from forerun.api import bodies
from forerun.api.bodies import read_bytes
from forerun.base.errors import RequestError, TooLargeError


def read(*pieces: bytes, limit: int, length: int | None = None, ends: bool = True) -> bytes:
    """What is read of a body that comes in these pieces; without `ends` more is promised."""

    async def receive() -> Message:
        if left:
            return {
                "type": "http.request",
                "body": left.pop(0),
                "more_body": bool(left) or not ends,
            }
        await asyncio.Event().wait()
        raise AssertionError

    left = list(pieces)
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
    return asyncio.run(read_bytes(Request(scope, receive), limit))


def test_a_body_up_to_the_limit_is_read_whole() -> None:
    assert read(b"ab", b"", b"c", limit=3, length=3) == b"abc"


@pytest.mark.parametrize("length", [None, 1])
def test_what_comes_counts_and_not_what_was_said(length: int | None) -> None:
    with pytest.raises(TooLargeError, match="over 3 B"):
        read(b"ab", b"cd", b"never asked for", limit=3, length=length)


def test_a_length_over_the_limit_is_refused_before_a_byte_came() -> None:
    with pytest.raises(TooLargeError):
        read(limit=3, length=4)


def test_a_body_that_stops_coming_is_given_up(monkeypatch) -> None:
    monkeypatch.setattr(bodies, "STALL_S", 0.05)
    with pytest.raises(RequestError, match=r"no byte .* for 0\.05 s"):
        read(b"a", limit=9, ends=False)
