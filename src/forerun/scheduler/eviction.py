"""Which loaded model makes room for another (spec 08 SCH-3)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

MODELS_PER_DEVICE = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded model as eviction sees it."""

    active: int  # requests at work on it
    keep_alive_s: float  # infinite: pinned
    idle_since: float  # on any clock; of a busy one nothing


def order(candidate: Candidate) -> tuple[int, float, float]:
    """Candidates in this order go one after another.

    Idle before busy, fewest requests first; then the shortest keep-alive, so pinned ones last; then
    the one that was idle longest.
    """
    since = 0.0 if candidate.active else candidate.idle_since
    return candidate.active, candidate.keep_alive_s, since


def choose(candidates: Iterable[tuple[T, Candidate]]) -> T | None:
    """Who goes first. A busy one is only chosen if all are, and has to finish first."""
    ranked = sorted(candidates, key=lambda pair: order(pair[1]))
    return ranked[0][0] if ranked else None


def most_models(stated: int | None, gpus: int) -> int:
    """Models loaded at once: what is stated, else three, or three for each GPU."""
    return stated if stated is not None else MODELS_PER_DEVICE * max(1, gpus)
