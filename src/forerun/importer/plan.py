"""Which tensors an import writes, in which order and how (spec 07 PLN). No file is opened here."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from forerun.base.errors import ImportFailedError


class Rule(Enum):
    """What happens to a tensor's values on the way."""

    KEEP = "keep"  # the bytes as they are
    AFFINE = "affine"  # quantised blocks become affine groups of equal values (GUF-2)
    WIDEN = "widen"  # blocks without an affine form become bfloat16


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the store, which is one blob and one layer of that name (PLN-1)."""

    name: str
    source: str  # its name where it comes from
    shape: tuple[int, ...]
    size: int  # bytes to read
    kind: str  # of the values in the store: int4, int8 or a float type
    rule: Rule = Rule.KEEP
    heads: int = 0  # heads whose interleaved rows are put back (GUF-4)
    minus_one: bool = False  # a norm that is stored as 1 + weight (GUF-5)


def in_order(plans: Iterable[TensorPlan]) -> tuple[TensorPlan, ...]:
    """Sorted by name. ImportFailedError where two sources would be one tensor (PLN-4)."""
    by_name: dict[str, TensorPlan] = {}
    for plan in plans:
        other = by_name.setdefault(plan.name, plan)
        if other is not plan:
            raise ImportFailedError(
                f"tensors {other.source} and {plan.source} are both {plan.name}; keep one of them"
            )
    return tuple(by_name[name] for name in sorted(by_name))


def total_bytes(plans: Iterable[TensorPlan]) -> int:
    return sum(plan.size for plan in plans)
