"""Rows of scores that no token can be drawn from, and whose fault that is (ORD-9)."""

import math
from collections.abc import Sequence

from forerun.base.errors import DamagedModelError, RequestError


class NoAllowedTokenError(RequestError):
    """Mask and bias left a row without a token. `slot` is the one to end; no state has changed."""

    def __init__(self, slot: int) -> None:
        super().__init__("no token is allowed here")
        self.slot = slot


def largest(scores: Sequence[float], ids: Sequence[int]) -> float:
    """Of a row's largest scores, which descend; NaN where ids say that others are no numbers."""
    return scores[0] if ids[-1] >= 0 else math.nan


def damaged(score: float) -> bool:
    """Whether a row whose largest score this is comes from no sound model."""
    return not math.isfinite(score) and score != -math.inf


def refuse_damaged(score: float, what: str = "logits") -> None:
    """Raise DamagedModelError where `what` holds a number that no sound model gives.

    score   the largest of a row, or what is no number where one of them is none
    """
    if damaged(score):
        raise DamagedModelError(
            f"the model's {what} hold {score}: its weights are damaged or its numbers overflow; "
            f"import it again, or take another checkpoint of it"
        )


def refuse_empty(slots: Sequence[int], best: Sequence[float]) -> None:
    """Raise NoAllowedTokenError for the first slot whose row holds nothing, or DamagedModelError.

    best   the largest score of each slot's row
    """
    for slot, score in zip(slots, best, strict=True):
        if score == -math.inf:
            raise NoAllowedTokenError(slot)
        refuse_damaged(score)
