"""Where a prefill captures state on its way: the end of the prompt, long strides, the branch."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.prefix.keys import LookAhead, MediaRange


@dataclass(frozen=True, slots=True)
class CaptureRule:
    """Which offsets of a prompt are worth coming back to (SCH-1)."""

    interval: int = 8192  # tokens between captures of a long prompt
    before_end: int = 4  # so that a retry with another end, as without thinking, reuses the rest

    def offsets(self, tokens: int) -> list[int]:
        strides = list(range(self.interval, tokens, self.interval))
        return [*strides, tokens - self.before_end] if tokens > self.before_end else strides


@dataclass(frozen=True, slots=True)
class PendingCapture:
    """An offset scheduled on every layer. `user`: compaction leaves its node alone (CMP-1)."""

    offset: int
    user: bool


def planned(
    rule: CaptureRule,
    *,
    tokens: int,
    cached: int,
    branch: int,
    look_ahead: LookAhead,
    media: Sequence[MediaRange] = (),
) -> tuple[PendingCapture, ...]:
    """The captures of one prefill, in ascending order.

    tokens  of the prompt
    cached  tokens that the caches hold already
    branch  where the match ended: the next request that differs there resumes from it (BEG-5)
    """
    found = {branch: False} if branch > cached else {}
    for wanted in rule.offsets(tokens):
        offset = _outside(wanted - look_ahead, media)
        if cached < offset <= tokens:
            found[offset] = True
    return tuple(PendingCapture(offset, found[offset]) for offset in sorted(found))


def resume_point(matched: int, media: Sequence[MediaRange]) -> int:
    """`matched`, or the start of the non-causal item that it would cut (BEG-3)."""
    cut = _cut_item(matched, media)
    return matched if cut is None else cut.start


def _outside(offset: int, media: Sequence[MediaRange]) -> int:
    cut = _cut_item(offset, media)
    return offset if cut is None else cut.end


def _cut_item(offset: int, media: Sequence[MediaRange]) -> MediaRange | None:
    cuts = (item for item in media if not item.causal and item.strictly_holds(offset))
    return next(cuts, None)
