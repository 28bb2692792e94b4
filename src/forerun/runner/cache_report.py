"""What the prefix cache of a served model holds, as people and programs are told (02 STR)."""

from collections.abc import Callable, Sequence
from itertools import groupby

from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import cache_bytes
from forerun.prefix.facts import NodeFacts
from forerun.protocol.cache import CacheNode, CacheReport

FIRST_FOLD = 1 << 31  # what stands for an image or recording is no token id (KEY-2)
SHOWN = 40  # characters of a stretch's text: enough to recognise a conversation
MEDIA = "[media]"

Decode = Callable[[Sequence[int]], str]


def describe(engine: LoadedModel, decode: Decode, *, freed_bytes: int = 0) -> CacheReport:
    """The trie below its empty root. Runs in the device thread, the only one that touches it."""
    prefix = engine.prefix
    return CacheReport(
        context=engine.context,
        budget=prefix.budget_bytes,
        snapshots=prefix.snapshot_bytes,
        live_tokens=prefix.live_tokens,
        live_bytes=cache_bytes(engine),
        freed_bytes=freed_bytes,
        nodes=[_node(facts, decode) for facts in prefix.nodes() if facts.depth],
    )


def beginning(tokens: Sequence[int], decode: Decode) -> str:
    """How `tokens` read on one line: what does not print is escaped, half a character left out."""
    text = "".join(
        MEDIA if media else decode(list(run)).rstrip("\ufffd")
        for media, run in groupby(tokens, lambda token: token >= FIRST_FOLD)
    )
    line = "".join(map(_printable, text))
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "\u2026"


def _node(facts: NodeFacts, decode: Decode) -> CacheNode:
    return CacheNode(
        depth=facts.depth - 1,
        start=facts.start,
        end=facts.end,
        bytes=facts.owned_bytes,
        age_seconds=facts.age_s,
        active=facts.active,
        frontier=facts.frontier,
        user=facts.user,
        lazy=facts.lazy,
        complete=facts.complete,
        text=beginning(facts.first_tokens, decode),
    )


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()
