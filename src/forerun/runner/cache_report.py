"""What the prefix cache of a served model holds, as people and programs are told (02 STR).

The device thread takes a `Look`, which is cheap; any thread turns it into a report.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import cache_bytes
from forerun.prefix.facts import NodeFacts
from forerun.protocol.cache import CacheNode, CacheReport
from forerun.runner.node_text import text_of
from forerun.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Look:
    """What was cached at one moment."""

    taken_at: float  # of the monotonic clock
    context: int
    budget: int
    snapshots: int
    live_tokens: int
    live_bytes: int
    nodes: tuple[NodeFacts, ...]  # without the empty root


def look(engine: LoadedModel) -> Look:
    """Runs in the device thread, the only one that touches the trie."""
    prefix = engine.prefix
    return Look(
        taken_at=time.monotonic(),
        context=engine.context,
        budget=prefix.budget_bytes,
        snapshots=prefix.snapshot_bytes,
        live_tokens=prefix.live_tokens,
        live_bytes=cache_bytes(engine),
        nodes=prefix.nodes()[1:],
    )


def describe(
    seen: Look, tokenizer: Tokenizer, *, stale: bool = False, freed_bytes: int = 0
) -> CacheReport:
    """The report of a look; `stale`: it tells how long ago that was."""
    passed_s = time.monotonic() - seen.taken_at if stale else 0.0
    ages = _ages(seen.nodes)
    return CacheReport(
        context=seen.context,
        budget=seen.budget,
        snapshots=seen.snapshots,
        live_tokens=seen.live_tokens,
        live_bytes=seen.live_bytes,
        freed_bytes=freed_bytes,
        as_of_seconds=passed_s,
        nodes=[
            _node(facts, tokenizer, age + passed_s)
            for facts, age in zip(seen.nodes, ages, strict=True)
        ],
    )


def _ages(nodes: Sequence[NodeFacts]) -> list[float]:
    """Seconds since a node or one below it was used: a request marks only where it ends (SWI-9)."""
    ages = [facts.age_s for facts in nodes]
    least_below: dict[int, float] = {}  # by depth, of nodes whose parent is still to come
    for place in reversed(range(len(nodes))):
        depth = nodes[place].depth
        ages[place] = min(ages[place], least_below.pop(depth + 1, inf))
        least_below[depth] = min(ages[place], least_below.get(depth, inf))
    return ages


def _node(facts: NodeFacts, tokenizer: Tokenizer, age_s: float) -> CacheNode:
    return CacheNode(
        depth=facts.depth - 1,
        start=facts.start,
        end=facts.end,
        bytes=facts.owned_bytes,
        age_seconds=age_s,
        active=facts.active,
        frontier=facts.frontier,
        user=facts.user,
        lazy=facts.lazy,
        complete=facts.complete,
        text=text_of(facts.first_tokens, facts.last_tokens, tokenizer),
    )
