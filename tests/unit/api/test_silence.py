"""A stream says something from time to time (E19)."""

import asyncio
from collections.abc import AsyncGenerator

from forerun.api.response import with_silence_broken

QUIET_S = 0.02


async def listen(pieces: AsyncGenerator[bytes, None], *, until: int) -> list[bytes]:
    """What comes, up to so many signs of life."""
    heard: list[bytes] = []
    unbroken = with_silence_broken(pieces, lambda: b"quiet", QUIET_S)
    async for piece in unbroken:
        heard.append(piece)
        if heard.count(b"quiet") == until:
            break
    await unbroken.aclose()
    return heard


def test_steps_without_a_word_are_silence() -> None:
    """E19: a long prompt is told step by step, which puts nothing on the wire."""

    async def steps() -> AsyncGenerator[bytes, None]:
        while True:
            yield b""
            await asyncio.sleep(QUIET_S / 10)

    heard = asyncio.run(asyncio.wait_for(listen(steps(), until=2), 10))
    assert heard.count(b"") >= 2
    assert heard[-1] == b"quiet"


def test_words_come_unchanged_and_in_order() -> None:
    """E19: a sign of life is no end, and loses nothing."""

    async def slow() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await asyncio.sleep(QUIET_S * 5)
        yield b"b"
        yield b"c"

    heard = asyncio.run(asyncio.wait_for(listen(slow(), until=1000), 10))
    assert [piece for piece in heard if piece != b"quiet"] == [b"a", b"b", b"c"]
    assert heard[:2] == [b"a", b"quiet"]


def test_leaving_ends_what_is_waited_for() -> None:
    """05 HTP-5: its own clean-up runs before the stream is left."""
    ended: list[str] = []

    async def hanging() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            ended.append("ended")

    asyncio.run(asyncio.wait_for(listen(hanging(), until=1), 10))
    assert ended == ["ended"]
