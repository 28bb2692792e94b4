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
    GATHER = "gather"  # the parts of a publisher's quantised weight become ours (PRQ)
    QUANTISE = "quantise"  # values, whatever they are stored as, become codes and scales


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the store."""

    name: str
    sources: tuple[str, ...]  # its name where it comes from, or those of its experts in order
    shape: tuple[int, ...]  # of the values
    size: int  # bytes to read
    kind: str  # of the values in the store: a quantised type or a float type
    rule: Rule = Rule.KEEP
    group: int = 0  # columns that share a scale, 0 for floats
    heads: int = 0  # heads whose interleaved rows are put back (GUF-4)
    minus_one: bool = False  # a norm that is stored as 1 + weight (GUF-5)

    @property
    def source(self) -> str:
        """The first of `sources`; of all but experts' stacks the only one."""
        return self.sources[0]


@dataclass(frozen=True, slots=True)
class BlobPlan:
    """One blob of the store, a layer of that name (PLN-1)."""

    name: str
    tensors: tuple[TensorPlan, ...]  # of one type, where they are more than one

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def metadata(self) -> dict[str, str]:
        """What the blob says of its tensors (PLN-5)."""
        first = self.tensors[0]
        if not first.group:
            return {}
        return {"quant_type": first.kind, "group_size": str(first.group)}


def alone(plan: TensorPlan) -> BlobPlan:
    return BlobPlan(plan.name, (plan,))


def in_order(plans: Iterable[TensorPlan], groups: Iterable[BlobPlan] = ()) -> tuple[BlobPlan, ...]:
    """A blob a plan, sorted by name, then the groups, sorted.

    ImportFailedError where two sources would be one tensor (PLN-4).
    """
    blobs = [
        *sorted((alone(plan) for plan in plans), key=lambda blob: blob.name),
        *sorted(groups, key=lambda blob: blob.name),
    ]
    by_name: dict[str, TensorPlan] = {}
    for plan in tensors_of(blobs):
        other = by_name.setdefault(plan.name, plan)
        if other is not plan:
            raise ImportFailedError(
                f"tensors {other.source} and {plan.source} are both {plan.name}; keep one of them"
            )
    return tuple(blobs)


def tensors_of(blobs: Iterable[BlobPlan]) -> list[TensorPlan]:
    return [tensor for blob in blobs for tensor in blob.tensors]


def total_bytes(blobs: Iterable[BlobPlan]) -> int:
    return sum(blob.size for blob in blobs)
