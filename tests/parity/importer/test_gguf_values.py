"""Imported values are those of the gguf package's own dequantising, for every block layout."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.importer.convert import BlockKind, group_terms, pack_words, to_bfloat16
from forerun.importer.gguf_reader.config import Heads
from forerun.importer.gguf_reader.file import open_gguf
from forerun.importer.gguf_reader.names import FAMILIES
from forerun.importer.gguf_reader.tensors import Planned, plan_tensors, tensor_file
from forerun.importer.plan import alone
from forerun.importer.policy.choose import chooser
from forerun.importer.write import write_tensors
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import AffineWeight
from unit.importer.gguf_files import write_gguf

AFFINE = ["Q4_0", "Q4_1", "Q8_0"]
# Where a block keeps its float16 terms, so that random bytes elsewhere give finite weights.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q8_0": [0],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
NEAR_HALVES = st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])  # of a bfloat16 step
MAX_HALF = 0x7BFF  # the bits of 65504


def random_blocks(kind: str, rows: int, blocks: int, seed: int) -> NDArray[np.uint8]:
    """[rows, blocks * block bytes] whose float16 terms take every finite value there is."""
    random = np.random.default_rng(seed)
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    data = random.integers(0, 256, (rows, blocks, size), np.uint8)
    for place in HALVES[kind]:
        bits = random.integers(0, MAX_HALF + 1, (rows, blocks)).astype("<u2")
        bits |= (random.integers(0, 2, (rows, blocks)) << 15).astype("<u2")
        data[:, :, place : place + 2] = bits[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def affine_values(rows: NDArray[np.uint8], kind: str) -> Tensor:
    """Blocks to weights by way of the store's form and the kernels' reference."""
    block = BlockKind[kind]
    terms = group_terms(rows, block)
    weight = AffineWeight(
        torch.from_numpy(pack_words(rows, block)),
        torch.from_numpy(terms.scale),
        torch.from_numpy(terms.bias),
        block.bits,
    )
    return dequantise(weight, torch.float32)


@pytest.mark.parametrize("kind", AFFINE)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 4), blocks=st.integers(1, 5))
@settings(max_examples=60)
def test_affine_groups_keep_every_value_exactly(
    kind: str, seed: int, rows: int, blocks: int
) -> None:
    """GUF-2, GUF-9: equal in float32, subnormal, negative and overflowing scales included."""
    data = random_blocks(kind, rows, blocks, seed)
    expected = dequantize(data, GGMLQuantizationType[kind])
    assert np.array_equal(affine_values(data, kind).numpy(), expected)


@pytest.mark.parametrize("kind", AFFINE)
def test_every_float16_scale_is_exact(kind: str) -> None:
    """GUF-2 over all 63,488 finite scales, one block each with all quantised values in turn."""
    bits = np.concatenate([np.arange(MAX_HALF + 1), np.arange(0x8000, 0x8000 + MAX_HALF + 1)])
    data = random_blocks(kind, len(bits), 1, seed=1)
    data[:, :2] = bits.astype("<u2")[:, None].view(np.uint8)
    expected = dequantize(data, GGMLQuantizationType[kind])
    assert np.array_equal(affine_values(data, kind).numpy(), expected)


@pytest.mark.parametrize(("kind", "largest"), [("Q4_0", 8188.0), ("Q8_0", 511.75)])
def test_scales_are_float32_only_where_float16_overflows(kind: str, largest: float) -> None:
    """GUF-2: -8 * d and -128 * d are held at fp16 precision or wider."""
    data = np.zeros((1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]), np.uint8)
    for scale, wanted in ((largest, np.float16), (-largest, np.float16), (2 * largest, np.float32)):
        data[:, :2] = np.array([[scale]], "<f2").view(np.uint8)
        terms = group_terms(data, BlockKind[kind])
        assert terms.scale.dtype == terms.bias.dtype == wanted


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), NEAR_HALVES), min_size=1))
def test_bfloat16_is_rounded_as_torch_rounds(values: list[tuple[int, int]]) -> None:
    """GUF-2: to nearest, ties to even; to infinity where nothing is near."""
    exact = np.array([high << 16 | low for high, low in values], np.uint32).view(np.float32)
    exact = exact[~np.isnan(exact)]
    expected = torch.from_numpy(exact).bfloat16().view(torch.int16).numpy()
    assert np.array_equal(to_bfloat16(exact).view(np.int16), expected)


def imported(path: Path, name: str, family: str = "qwen3") -> dict[str, Tensor]:
    """All tensors of the blob that tensor `name` of a file becomes, and its metadata."""
    file = open_gguf(path)
    plans = plan_tensors(file, FAMILIES[family], Heads(1, 1, 1), chooser({}, "")).plans
    plan = next(plan for plan in plans if plan.name == name)
    tensor = next(tensor for tensor in file.tensors if tensor.name == plan.source)
    blob = path.with_suffix(".safetensors")
    with blob.open("wb") as sink:
        write_tensors(tensor_file(file, tensor, alone(plan)), sink)
    with safe_open(blob, "pt") as opened:
        return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118


@pytest.mark.parametrize("kind", [kind for kind in HALVES if kind not in AFFINE])
def test_other_blocks_become_bfloat16(kind: str, tmp_path: Path) -> None:
    """GUF-1, GUF-2: dequantised by the gguf package, rounded once as torch rounds."""
    data = random_blocks(kind, 40, 2, seed=3)
    expected = torch.from_numpy(dequantize(data, GGMLQuantizationType[kind]))
    finite = expected.isfinite().all(1).numpy()
    data = data[finite]
    path = write_gguf(
        tmp_path / "a.gguf",
        "qwen3",
        {},
        {"blk.0.attn_v.weight": (data, GGMLQuantizationType[kind])},
    )
    name = "model.layers.0.self_attn.v_proj.weight"
    assert torch.equal(imported(path, name)[name], expected[torch.from_numpy(finite)].bfloat16())


def test_mxfp4_becomes_bfloat16(tmp_path: Path) -> None:
    """GUF-1."""
    kind = GGMLQuantizationType.MXFP4
    data = np.random.default_rng(0).integers(0, 256, (8, 3, 17), np.uint8)
    data[:, :, 0] = np.random.default_rng(1).integers(100, 150, (8, 3))  # the shared exponent
    path = write_gguf(
        tmp_path / "a.gguf", "qwen3", {}, {"output.weight": (data.reshape(8, -1), kind)}
    )
    expected = torch.from_numpy(dequantize(data.reshape(8, -1), kind))
    assert torch.equal(imported(path, "lm_head.weight")["lm_head.weight"], expected.bfloat16())


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_floats_stay_as_they_are(kind: str, tmp_path: Path) -> None:
    """GUF-2, GUF-3: same bits, [out, in]."""
    values = torch.randn(6, 10)
    typed = {"F32": values, "F16": values.half(), "BF16": values.bfloat16()}[kind]
    raw = typed.view(torch.uint8).numpy() if kind == "BF16" else typed.numpy()
    path = write_gguf(
        tmp_path / "a.gguf", "qwen3", {}, {"output.weight": (raw, GGMLQuantizationType[kind])}
    )
    found = imported(path, "lm_head.weight")["lm_head.weight"]
    assert found.dtype == typed.dtype
    assert torch.equal(found, typed)


def test_a_stored_quantised_weight_says_what_it_is(tmp_path: Path) -> None:
    """PLN-5: words, scale and bias by name; the metadata states format and group."""
    data = random_blocks("Q8_0", 4, 3, seed=0)
    path = write_gguf(
        tmp_path / "a.gguf",
        "qwen3",
        {},
        {"token_embd.weight": (data, GGMLQuantizationType.Q8_0)},
    )
    found = imported(path, "model.embed_tokens.weight")
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in found.items()}
    terms = found["model.embed_tokens.weight.scale"].dtype, (4, 3)
    assert shapes == {
        "model.embed_tokens.weight": (torch.uint32, (4, 24)),
        "model.embed_tokens.weight.scale": terms,
        "model.embed_tokens.weight.bias": terms,
    }
    with safe_open(path.with_suffix(".safetensors"), "pt") as blob:
        assert blob.metadata() == {"quant_type": "int8", "group_size": "32"}


def test_stacked_experts_keep_their_three_dimensions(tmp_path: Path) -> None:
    """GUF-2, GUF-6: [experts, out, in] becomes words and terms of three dimensions."""
    data = random_blocks("Q4_1", 6, 2, seed=5)
    kind = GGMLQuantizationType.Q4_1
    tensors = {"blk.0.ffn_up_exps.weight": (data.reshape(2, 3, -1), kind)}
    path = write_gguf(tmp_path / "a.gguf", "qwen3moe", {}, tensors)
    name = "model.layers.0.mlp.experts.up_proj.weight"
    found = imported(path, name, family="qwen3moe")
    assert found[name].shape == (2, 3, 8)
    words, scale, bias = (found[name + part].flatten(0, 1) for part in ("", ".scale", ".bias"))
    values = dequantise(AffineWeight(words, scale, bias, 4), torch.float32)
    assert np.array_equal(values.numpy(), dequantize(data, kind))


@pytest.mark.parametrize("kind", ["TQ1_0", "IQ4_NL", "IQ2_XXS"])
def test_types_that_gguf_widens_are_taken(kind: str, tmp_path: Path) -> None:
    """GUF-1."""
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    planned = plan_of(kind, np.zeros((2, size), np.uint8), tmp_path)
    assert [plan.kind for plan in planned.plans] == ["BF16"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("Q8_K", np.zeros((2, 292), np.uint8)),
        ("I32", np.zeros((2, 4), np.int32)),
        ("F64", np.zeros((2, 4), np.float64)),
    ],
)
def test_other_types_are_refused_by_name(kind: str, values: NDArray[Any], tmp_path: Path) -> None:
    """GUF-1: the error names the type and the tensor."""
    with pytest.raises(ImportFailedError, match=rf"blk\.7\.attn_v\.weight .*{kind}"):
        plan_of(kind, values, tmp_path)


def plan_of(kind: str, values: NDArray[Any], folder: Path) -> Planned:
    tensors = {"blk.7.attn_v.weight": (values, GGMLQuantizationType[kind])}
    file = open_gguf(write_gguf(folder / "a.gguf", "qwen3", {}, tensors))
    return plan_tensors(file, FAMILIES["qwen3"], Heads(1, 1, 1), chooser({}, ""))
