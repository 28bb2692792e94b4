"""From a folder's weights to the blobs of the store: types by policy, experts stacked (07 PLN).

A plan depends on names, shapes and types alone, never on values or on the order of files.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.base.errors import ImportFailedError
from forerun.importer.classification import E4M3
from forerun.importer.plan import BlobPlan, Rule, TensorPlan, alone, in_order
from forerun.importer.policy.choose import Choose
from forerun.importer.policy.kinds import GROUPS, SOURCE
from forerun.importer.source_tensors import SourceTensor

FLOATS: Final = ("BF16", "F16", "F32", "F64")
_EXPERT: Final = re.compile(r"((?:.*\.)?experts)\.(\d+)\.(\w+)\.weight")


def plan_blobs(
    sources: Mapping[str, SourceTensor], choose: Choose, prefix: str = ""
) -> tuple[BlobPlan, ...]:
    """prefix: before every name in the store. ImportFailedError names the tensor at fault."""
    planner = _Planner(choose, prefix)
    single: list[TensorPlan] = []
    stacks: dict[str, dict[str, dict[int, SourceTensor]]] = defaultdict(lambda: defaultdict(dict))
    for name, source in sorted(sources.items()):
        expert = _EXPERT.fullmatch(name)
        if expert is None or len(source.shape) != 2:
            single.append(planner.plan(name, [source]))
            continue
        stack = stacks[expert[1]][expert[3]]
        other = stack.setdefault(int(expert[2]), source)
        if other is not source:
            raise ImportFailedError(f"tensors {other.name} and {name} are one expert; keep one")
    groups = [blob for path, stack in stacks.items() for blob in planner.group(path, stack)]
    return in_order(single, groups)


@dataclass(frozen=True, slots=True)
class _Planner:
    choose: Choose
    prefix: str

    def plan(
        self, name: str, sources: Sequence[SourceTensor], *, stacked: bool = False
    ) -> TensorPlan:
        """What becomes of one weight, or of a stack of equal ones."""
        first = sources[0]
        shape = (len(sources), *first.shape) if stacked else first.shape
        name = self.prefix + name
        rule, kind, group = self._outcome(name, shape, first)
        return TensorPlan(
            name=name,
            sources=tuple(source.name for source in sources),
            shape=shape,
            size=sum(source.size for source in sources),
            kind=kind,
            rule=rule,
            group=group,
        )

    def group(self, path: str, stacks: Mapping[str, Mapping[int, SourceTensor]]) -> list[BlobPlan]:
        """PLN-2: one blob where all projections are of one type, else one for each."""
        count = 1 + max(index for stack in stacks.values() for index in stack)
        plans = [
            self.plan(f"{path}.{part}.weight", _in_turn(path, part, stack, count), stacked=True)
            for part, stack in sorted(stacks.items())
        ]
        if len({(plan.kind, plan.group) for plan in plans}) == 1:
            return [BlobPlan(self.prefix + path, tuple(plans))]
        return [alone(plan) for plan in plans]

    def _outcome(
        self, name: str, shape: tuple[int, ...], source: SourceTensor
    ) -> tuple[Rule, str, int]:
        if source.group:
            return Rule.GATHER, source.kind, source.group
        if source.kind != E4M3 and source.kind not in FLOATS:
            return Rule.KEEP, source.kind, 0
        kind = self.choose(name, shape)
        if kind != SOURCE:
            return Rule.QUANTISE, kind, GROUPS[kind]
        if source.kind == E4M3:
            return Rule.WIDEN, "BF16", 0
        return Rule.KEEP, source.kind, 0


def _in_turn(
    path: str, part: str, stack: Mapping[int, SourceTensor], count: int
) -> list[SourceTensor]:
    """The experts from 0 on, all alike."""
    if len(stack) < count:
        missing = next(index for index in range(count) if index not in stack)
        raise ImportFailedError(
            f"tensor {path}.{missing}.{part}.weight is missing, and there is an expert "
            f"{count - 1}; the checkpoint is incomplete"
        )
    experts = [stack[index] for index in range(count)]
    first = experts[0]
    for expert in experts:
        difference = _difference(expert, first)
        if difference is not None:
            raise ImportFailedError(
                f"tensor {difference}; experts of a layer are stacked and must be alike"
            )
    return experts


def _difference(expert: SourceTensor, first: SourceTensor) -> str | None:
    """What of one expert is not as it is of the first, in words; None where they are alike."""
    if _form(expert) != _form(first):
        return f"{expert.values.name} is {_form(expert)}, and {first.values.name} {_form(first)}"
    for what, one, other in (
        ("codes", expert.values, first.values),
        ("scales", expert.scale, first.scale),
        ("zero points", expert.bias, first.bias),
        ("global scale", expert.global_scale, first.global_scale),
    ):
        if one is not None and other is not None:
            if one.dtype != other.dtype:
                return f"{one.name} is {one.dtype}, and {other.name} {other.dtype}"
        elif one is not None:
            return f"{first.values.name} has no {what}, and there is {one.name}"
        elif other is not None:
            return f"{expert.values.name} has no {what}, and there is {other.name}"
    return None


def _form(source: SourceTensor) -> str:
    groups = f" in groups of {source.group}" if source.group else ""
    return f"{source.kind} {list(source.shape)}{groups}"
