"""Rope parameters out of a config, tables of a batch, rotation."""

from collections.abc import Mapping
from ctypes import c_float

import pytest
import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.contract.batch import Batch
from forerun.nn.rope import Rope, RopeParameters, from_config
from forerun.nn.rope_parameters import Linear, Llama3, Yarn
from forerun.nn.rope_rows import AT_ONCE, POSITIONS

CPU = torch.device("cpu")
PLAIN = RopeParameters("default", 8, 100.0)


def turned(x: Tensor, positions: Tensor, parameters: RopeParameters) -> Tensor:
    """Half-split rotation, one pair at a time, in float64."""
    out, half = x.double().clone(), parameters.dim // 2
    for pair in range(half):
        angle = positions[..., None].double() * parameters.theta ** (-2 * pair / parameters.dim)
        a, b = x[..., pair].double(), x[..., pair + half].double()
        out[..., pair] = a * angle.cos() - b * angle.sin()
        out[..., pair + half] = b * angle.cos() + a * angle.sin()
    return out


@pytest.mark.parametrize("width", [8, 12])
def test_the_first_dimensions_turn_and_the_others_pass(width: int) -> None:
    """ROP-2"""
    x = torch.randn(2, 3, 4, width)
    positions = torch.tensor([[0, 1, 2], [70, 5, 1000]])
    got = Rope(PLAIN, CPU).tables(positions, torch.float32).rotate(x)
    torch.testing.assert_close(got.double(), turned(x, positions, PLAIN), atol=1e-4, rtol=1e-4)
    assert torch.equal(got[..., 8:], x[..., 8:])


def test_half_precision_rounds_tables_and_not_angles() -> None:
    """ROP-2: a position beyond what bfloat16 can count still turns by its own angle."""
    tables = Rope(PLAIN, CPU).tables(torch.tensor([[4097]]), torch.bfloat16)
    exact = Rope(PLAIN, CPU).tables(torch.tensor([[4097]]), torch.float32)
    assert tables.cos.dtype == torch.bfloat16
    assert torch.equal(tables.cos, exact.cos.bfloat16())
    assert torch.equal(tables.sin, exact.sin.bfloat16())


def test_the_attention_factor_multiplies_rotated_dimensions_only() -> None:
    """ROP-6"""
    yarn = Yarn(4.0, 100.0, 1.5, beta_fast=32.0, beta_slow=1.0, truncate=True)
    x = torch.randn(1, 1, 2, 12)
    tables = Rope(RopeParameters("yarn", 8, 100.0, yarn), CPU).tables(
        torch.tensor([[3]]), torch.float32
    )
    got = tables.rotate(x)
    torch.testing.assert_close(got[..., :8].norm(dim=-1), 1.5 * x[..., :8].norm(dim=-1))
    assert torch.equal(got[..., 8:], x[..., 8:])


def test_positions_come_per_row() -> None:
    """CON-8: a row's tables do not depend on the rows beside it."""
    rope = Rope(PLAIN, CPU)
    starts = (5, 0, 300)
    batch = Batch(
        input_ids=torch.zeros(3, 2, dtype=torch.int64),
        starts=starts,
        lengths=(2, 2, 2),
        start_offsets=torch.tensor(starts),
        valid_lengths=torch.tensor([2, 2, 2]),
    )
    together = rope.of_batch(batch, torch.float32)
    for row, start in enumerate(starts):
        alone = rope.of_batch(Batch.of([0, 0], start, CPU), torch.float32)
        assert torch.equal(together.cos[row], alone.cos[0])
        assert torch.equal(together.sin[row], alone.sin[0])


def test_layers_of_a_forward_share_one_table() -> None:
    batch = Batch.of([1, 2], 0, CPU)
    first = Rope(PLAIN, CPU).of_batch(batch, torch.float32)
    assert Rope(PLAIN, CPU).of_batch(batch, torch.float32) is first
    other = RopeParameters("default", 8, 200.0)
    assert not torch.equal(Rope(other, CPU).of_batch(batch, torch.float32).cos, first.cos)
    assert Rope(PLAIN, CPU).of_batch(batch, torch.bfloat16).cos.dtype == torch.bfloat16


def read(address: int, count: int) -> Tensor:
    """What stands there, as a kernel reads it: float32 [count]."""
    return torch.frombuffer((c_float * count).from_address(address), dtype=torch.float32).clone()


YARN = Yarn(4.0, 100.0, 1.5, beta_fast=32.0, beta_slow=1.0, truncate=True)
KEPT = [
    PLAIN,
    RopeParameters("default", 64, 1e6),
    RopeParameters("linear", 96, 1e4, Linear(8.0)),
    RopeParameters("llama3", 128, 5e5, Llama3(8.0, 1.0, 4.0, 8192.0)),
    RopeParameters("yarn", 8, 100.0, YARN),
]


@pytest.mark.parametrize("parameters", KEPT)
def test_kept_rows_are_the_computed_ones(parameters: RopeParameters) -> None:
    """ROP-2: bit for bit, wherever a batch starts, and beyond what is kept, too."""
    rope, half = Rope(parameters, CPU), parameters.dim // 2
    ends = (AT_ONCE - 1, AT_ONCE, 3 * AT_ONCE + 7, POSITIONS)
    for start in (0, 5, *ends, 17, 1_000_000):
        for width in (1, 2, 9):
            batch = Batch.of([0] * width, start, CPU)
            ((cosines, sines),) = rope.addresses(batch)
            want = Rope(parameters, CPU).tables(batch.positions(), torch.float32)
            cos, sin = want.cos[0, :, 0, :half], want.sin[0, :, 0, half:]
            assert torch.equal(read(cosines, width * half), cos.flatten()), (start, width)
            assert torch.equal(read(sines, width * half), sin.flatten()), (start, width)


def test_kept_rows_stay_where_they_are() -> None:
    """A step may hold an address; and rows may be first asked for in any mode of gradients."""
    rope = Rope(PLAIN, CPU)
    with torch.inference_mode():
        first = rope.addresses(Batch.of([1], 3, CPU))
    rope.addresses(Batch.of([1], POSITIONS - 1, CPU))
    assert rope.addresses(Batch.of([1], 3, CPU)) == first


def test_every_row_of_a_batch_has_rows_of_its_own() -> None:
    """CON-8: padded or not, and where one of them is beyond what is kept."""
    rope = Rope(PLAIN, CPU)
    for starts in ((5, 0), (5, 2 * POSITIONS)):
        offsets, valid = torch.tensor(starts), torch.tensor((3, 1))
        batch = Batch(torch.zeros(2, 3, dtype=torch.int64), starts, (3, 1), offsets, valid)
        for (cosines, _), start in zip(rope.addresses(batch), starts, strict=True):
            alone = Rope(PLAIN, CPU).tables(torch.tensor([[start]]), torch.float32)
            assert torch.equal(read(cosines, 4), alone.cos[0, 0, 0, :4])


NEWER: Mapping[str, object] = {"rope_theta": 7.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": NEWER},
        {"rope_parameters": NEWER, "rope_theta": 9.0, "partial_rotary_factor": 1.0},
        {"rope_parameters": {"rope_type": "default"}, **NEWER},
        {"rope_parameters": {"rope_theta": 7.0}, "partial_rotary_factor": 0.5},
        NEWER,
        {"rope_scaling": None, **NEWER},
        {"rope_scaling": {"type": "default"}, **NEWER},
        {"text_config": NEWER},
        {"text_config": NEWER, "rope_theta": 9.0},
        {"text_config": {"rope_parameters": NEWER}, "rope_theta": 9.0},
        {"text_config": {"rope_theta": None, "partial_rotary_factor": 0.5}, "rope_theta": 7.0},
        {"rope_parameters": NEWER, "rope_scaling": {"type": "linear", "factor": 3.0}},
    ],
)
def test_every_place_of_the_base_and_the_part(config: Mapping[str, object]) -> None:
    """ROP-1, F09: the inner place wins."""
    assert from_config(config, 16) == RopeParameters("default", 8, 7.0)


def test_nothing_stated_is_plain_rope_over_the_whole_head() -> None:
    """ROP-1"""
    assert from_config({}, 64) == RopeParameters("default", 64, 10000.0)


def test_parameters_nested_by_layer_kind_are_not_those_of_a_model_of_one_kind() -> None:
    """ROP-1"""
    config = {
        "rope_theta": 50.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0},
            "sliding_attention": {"rope_theta": 20.0},
        },
    }
    with pytest.raises(LoadError, match="full_attention, sliding_attention"):
        from_config(config, 8)


def test_dynamic_limits_the_context() -> None:
    """ROP-4"""
    config = {
        "max_position_embeddings": 2048,
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    }
    assert from_config(config, 8) == RopeParameters("dynamic", 8, 10000.0, max_context=2048)


def test_the_original_context_stands_at_either_place() -> None:
    """ROP-1, ROP-5"""
    stated = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    top = {"max_position_embeddings": 4096, "original_max_position_embeddings": 512}
    inner = {**stated, "original_max_position_embeddings": 256}
    assert from_config({"rope_parameters": stated, **top}, 8).scaling == Llama3(8, 1, 4, 512)
    assert from_config({"rope_parameters": inner, **top}, 8).scaling == Llama3(8, 1, 4, 256)


LONG = {"max_position_embeddings": 64}
YARN: Mapping[str, object] = {"rope_type": "yarn"}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"type": "su"}}, "su"),
        ({"rope_scaling": {"type": ["linear"]}}, "linear"),
        ({"rope_scaling": "linear"}, "rope_scaling to 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor to '4'"),
        ({"rope_scaling": {"type": "linear", "factor": -1.0}}, "factor to -1.0"),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor to inf"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "max_position_embeddings"),
        ({"rope_theta": True}, "rope_theta to True"),
        ({"rope_theta": 1}, "rope_theta to 1"),
        ({"rope_theta": 0}, "rope_theta to 0; it must be a number above 0"),
        ({"rope_theta": -10000.0}, "rope_theta to -10000.0; it must be a number above 0"),
        ({"rope_theta": float("nan")}, "rope_theta to nan"),
        ({"rope_theta": 1e300}, "rope_theta to 1e\\+300"),
        ({"rope_theta": 10**400}, "rope_theta to 10"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor to 0"),
        (LONG | {"rope_scaling": {**YARN, "factor": 1e-300}}, "factor to 1e-300"),
        (LONG | {"rope_scaling": {**YARN, "beta_fast": 1e300}}, "beta_fast to 1e\\+300"),
        ({"rope_scaling": YARN, "max_position_embeddings": 0.5}, "max_position_embeddings to 0"),
        ({"rope_parameters": []}, r"rope_parameters to \[\]; it must be an object"),
        ({"rope_parameters": 0, "rope_scaling": YARN}, "rope_parameters to 0"),
        ({"rope_scaling": ""}, "rope_scaling to ''"),
        ({"partial_rotary_factor": 2.0}, "32 of 16"),
        ({"partial_rotary_factor": 0.2}, "3 of 16"),
        ({"rope_parameters": LLAMA3, "max_position_embeddings": 64}, "low_freq_factor 4.0"),
    ],
)
def test_what_cannot_be_computed_is_refused(config: Mapping[str, object], named: str) -> None:
    """ROP-1, CON-14"""
    with pytest.raises(LoadError, match=named):
        from_config(config, 16)
