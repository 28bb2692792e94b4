"""How often a runner writes text: DEC-8."""

import asyncio

from forerun.protocol.codec import decode_event
from forerun.protocol.events import Chunk, Done, Figures, Progress
from forerun.runner import app
from forerun.runner.stream import EventStream

LONG_S = 1000.0
DONE = Done(
    reason="stop",
    figures=Figures(
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=2,
        prompt_seconds=0,
        generation_seconds=0,
    ),
)


def test_text_waits_for_the_interval_but_the_first_does_not(monkeypatch):
    """DEC-8: progress of the prompt costs the first token no waiting time."""
    monkeypatch.setattr(app, "COALESCE_S", LONG_S)

    async def read():
        stream = EventStream()
        lines = app._lines(stream)
        stream.put(Progress(processed=0, total=2))
        async with asyncio.timeout(10):
            written = [await anext(lines)]
            stream.put(Chunk(text="a"))
            written.append(await anext(lines))
        stream.put(Chunk(text="b"))
        following = asyncio.ensure_future(anext(lines))
        early, _ = await asyncio.wait({following}, timeout=0.05)
        following.cancel()
        return written, early

    written, early = asyncio.run(read())
    assert [decode_event(line) for line in written] == [
        Progress(processed=0, total=2),
        Chunk(text="a"),
    ]
    assert not early


def test_what_comes_within_the_interval_is_one_write(monkeypatch):
    """DEC-8."""
    monkeypatch.setattr(app, "COALESCE_S", 0.05)

    async def read():
        stream = EventStream()
        lines = app._lines(stream)
        stream.put(Chunk(text="a"))
        await anext(lines)
        stream.put(Chunk(text="b"))
        stream.put(Chunk(text="c"))
        async with asyncio.timeout(10):
            return await anext(lines)

    assert decode_event(asyncio.run(read())) == Chunk(text="bc")


def test_the_end_is_not_held_back(monkeypatch):
    """DEC-8: nothing can be joined with it any more."""
    monkeypatch.setattr(app, "COALESCE_S", LONG_S)

    async def read():
        stream = EventStream()
        lines = app._lines(stream)
        stream.put(Chunk(text="a"))
        async with asyncio.timeout(10):
            await anext(lines)
            ending = asyncio.ensure_future(anext(lines))
            await asyncio.sleep(0)
            stream.put(Chunk(text="b"))
            stream.put(DONE)
            return await ending

    text, end = asyncio.run(read()).splitlines()
    assert decode_event(text) == Chunk(text="b")
    assert decode_event(end) == DONE
