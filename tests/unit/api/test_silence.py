"""A stream says something from time to time, and is not written for nobody (E19; 05 DEC-8)."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from forerun.api import sending
from forerun.api.sending import LiveStream

QUIET_S = 0.02
Story = Callable[[LiveStream, list[bytes]], Awaitable[None]]


def heard(story: Story, *, reads: int = 1_000_000) -> list[bytes]:
    """What a client got that takes so many bodies and then no more."""
    bodies: list[bytes] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            if len(bodies) >= reads:
                await asyncio.Event().wait()
            bodies.append(message["body"])

    async def run() -> None:
        async with LiveStream(send, "text/plain", lambda: b"quiet", QUIET_S) as stream:
            await story(stream, bodies)

    asyncio.run(asyncio.wait_for(run(), 20))
    return bodies


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(QUIET_S / 10)


def test_steps_without_a_word_are_silence() -> None:
    """E19: a long prompt is told step by step, which puts nothing on the wire."""

    async def story(stream: LiveStream, bodies: list[bytes]) -> None:
        while bodies.count(b"quiet") < 2:
            await stream.write(b"")
            await asyncio.sleep(QUIET_S / 10)

    assert heard(story) == [b"quiet", b"quiet"]


def test_words_come_unchanged_and_in_order_and_put_off_the_next_sign() -> None:
    """E19: a sign of life is no end, and loses nothing."""

    async def story(stream: LiveStream, bodies: list[bytes]) -> None:
        await stream.write(b"a")
        await until(lambda: b"quiet" in bodies)
        await stream.write(b"b")
        await stream.write(b"c")
        await stream.end()
        await asyncio.sleep(QUIET_S * 3)  # after the end there is nothing more to say

    bodies = heard(story)
    assert bodies[:2] == [b"a", b"quiet"]
    assert [piece for piece in bodies if piece != b"quiet"] == [b"a", b"b", b"c", b""]
    assert bodies[-1] == b""


def test_the_head_goes_out_once_and_first() -> None:
    sent: list[str] = []

    async def send(message: Message) -> None:
        sent.append(message["type"])
        await asyncio.sleep(QUIET_S * 2)  # a sign of life is due meanwhile

    async def run() -> None:
        async with LiveStream(send, "text/plain", lambda: b"quiet", QUIET_S) as stream:
            assert not stream.begun
            await stream.begin()
            await stream.write(b"a")
            assert stream.begun

    asyncio.run(run())
    assert sent[0] == "http.response.start"
    assert sent.count("http.response.start") == 1


@pytest.mark.parametrize("words", [True, False])
def test_a_reader_that_takes_nothing_ends_its_writer(
    monkeypatch: pytest.MonkeyPatch, words: bool
) -> None:
    """05 DEC-8: in the middle of words as of signs of life."""
    monkeypatch.setattr(sending, "STALL_S", 0.05)

    async def story(stream: LiveStream, _: list[bytes]) -> None:
        await stream.write(b"a")
        if words:
            await stream.write(b"b")
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        heard(story, reads=1)
