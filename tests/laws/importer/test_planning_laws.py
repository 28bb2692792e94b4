"""Laws of planning: what an import writes follows from names, types and shapes (07 PLN)."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.importer.plan import Rule, tensors_of, total_bytes
from forerun.importer.planning import plan_blobs
from forerun.importer.policy.choose import chooser
from forerun.importer.policy.kinds import GROUPS
from forerun.importer.source_tensors import SourceTensor, plain
from forerun.store.headers import TensorEntry

PARTS = ("q_proj", "down_proj", "norm", "gate")
WIDTHS = st.sampled_from([1, 16, 48, 64, 96, 128])
KINDS = st.sampled_from(["", *GROUPS])
DTYPES = st.sampled_from(["BF16", "F32", "I64"])
ITEM = {"BF16": 2, "F32": 4, "I64": 8}

singles = st.builds(
    lambda layer, part, shape, dtype: (f"layers.{layer}.{part}.weight", shape, dtype),
    st.integers(0, 3),
    st.sampled_from(PARTS),
    st.lists(WIDTHS, min_size=1, max_size=3).map(tuple),
    DTYPES,
)


@st.composite
def expert_groups(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...], str]]:
    count, columns = draw(st.integers(0, 12)), draw(WIDTHS)
    return [
        (f"layers.0.mlp.experts.{expert}.{part}.weight", (32, columns), "BF16")
        for expert in range(count)
        for part in ("up_proj", "down_proj")
    ]


@st.composite
def models(draw: st.DrawFn) -> dict[str, SourceTensor]:
    described = draw(st.lists(singles, max_size=6, unique_by=lambda row: row[0]))
    described += draw(expert_groups())
    sources: dict[str, SourceTensor] = {}
    for name, shape, dtype in draw(st.permutations(described)):
        size = ITEM[dtype]
        for width in shape:
            size *= width
        sources[name] = plain(TensorEntry(name, dtype, shape, Path("file"), 0, size))
    return sources


@given(sources=models(), kind=KINDS)
@settings(max_examples=60)
def test_a_plan_is_a_function_of_what_the_tensors_are(
    sources: dict[str, SourceTensor], kind: str
) -> None:
    """PLN-1: the order in which a folder lists its tensors (here a random one) changes nothing."""
    in_order = {name: sources[name] for name in sorted(sources)}
    assert plan_blobs(in_order, chooser({}, kind)) == plan_blobs(sources, chooser({}, kind))


@given(sources=models(), kind=KINDS)
@settings(max_examples=60)
def test_every_source_tensor_is_read_exactly_once(
    sources: dict[str, SourceTensor], kind: str
) -> None:
    """PLN-1, PLN-2: and the bytes of a plan are those of its sources."""
    blobs = plan_blobs(sources, chooser({}, kind))
    read = [name for plan in tensors_of(blobs) for name in plan.sources]
    assert sorted(read) == sorted(sources)
    assert total_bytes(blobs) == sum(source.size for source in sources.values())
    names = [plan.name for plan in tensors_of(blobs)]
    assert len(set(names)) == len(names)


@given(sources=models(), kind=KINDS)
@settings(max_examples=60)
def test_experts_are_in_the_order_of_their_numbers(
    sources: dict[str, SourceTensor], kind: str
) -> None:
    """PLN-2: numbers, not letters, however many experts there are."""
    for plan in tensors_of(plan_blobs(sources, chooser({}, kind))):
        numbers = [int(found[1]) for found in map(_number, plan.sources) if found]
        if numbers:
            assert numbers == list(range(plan.shape[0]))


@given(sources=models(), kind=KINDS)
@settings(max_examples=60)
def test_a_blob_is_of_one_type_and_rows_are_whole_groups(
    sources: dict[str, SourceTensor], kind: str
) -> None:
    """PLN-2, PLN-5, POL-4: and nothing but floats is quantised."""
    for blob in plan_blobs(sources, chooser({}, kind)):
        assert len({(plan.kind, plan.group) for plan in blob.tensors}) == 1
        for plan in blob.tensors:
            if plan.rule is Rule.QUANTISE:
                assert plan.shape[-1] % plan.group == 0
                assert sources[plan.source].kind != "I64"
            else:
                assert plan.kind == sources[plan.source].kind


def _number(name: str) -> re.Match[str] | None:
    return re.search(r"experts\.(\d+)\.", name)
