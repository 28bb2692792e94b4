"""Quantised weights in a checkpoint: whatever is packed, the model is that of its values."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.checkpoints import (
    CPU,
    edit_tensors,
    loaded,
    logits,
    placement,
    read_config,
    relative_error,
)
from fixtures.tiny import tiny_folder
from forerun.base.errors import LoadError
from forerun.contract.model import SharedTables
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.models.projection import fusable_runs
from forerun.nn.placement import Placement
from forerun.quant.formats import QuantFormat
from forerun.quant.stored import packed_weight

TOKENS = list(range(30))
GROUP = 32
EXACT = Placement(torch.float32, CPU, KernelChoice(cpu_kernels=False))
TOLERANCE = 1e-5  # both sides are float32 sums over the same values

# bits a weight is packed to, by what its name contains; the first match counts
Plan = Mapping[str, int]
PLANS: dict[str, Plan] = {
    "all int4": {"_proj": 4},
    "all int8": {"_proj": 8},
    "values and keys in more bits": {"k_proj": 8, "v_proj": 8, "_proj": 4},
    "only some parts of a fusion": {"gate_proj": 4, "q_proj": 8},
    "a tied table": {"embed_tokens": 8, "_proj": 4},
}


def pack(
    weight: Tensor, bits: int, *, zero_points: bool = True
) -> tuple[dict[str, Tensor], Tensor]:
    """What a store holds for `weight`, by suffix, and the values that this stands for."""
    groups = weight.reshape(weight.shape[0], -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    if not zero_points:
        low = torch.zeros_like(low)
    scale = ((high - low).abs() / (2**bits - 1)).half()
    codes = ((groups - low) / scale.float()).round().clamp(0, 2**bits - 1)
    values = (codes * scale.float() + low.half().float()).flatten(1)
    octets = codes.flatten(1).to(torch.uint8).numpy()
    if bits == 4:
        octets = octets[:, ::2] | octets[:, 1::2] << 4
    words = torch.from_numpy(np.ascontiguousarray(octets).view(np.uint32))
    stored = {"": words, ".scale": scale.squeeze(-1)}
    if zero_points:
        stored[".bias"] = low.half().squeeze(-1)
    return stored, values


def write_blobs(
    folder: Path, into: Path, bits_of: Callable[[str], int | None], **options: bool
) -> list[Path]:
    """One file a tensor, as the store has them; `folder` gets the values that they stand for."""
    into.mkdir()
    files, dense = [], {}
    for index, (name, tensor) in enumerate(load_file(folder / "model.safetensors").items()):
        bits = bits_of(name)
        parts, dense[name] = ({"": tensor}, tensor)
        metadata = {}
        if bits is not None:
            parts, dense[name] = pack(tensor, bits, **options)
            metadata = {"quant_type": f"int{bits}", "group_size": str(GROUP)}
        files.append(into / f"{index}.safetensors")
        save_file({name + suffix: part for suffix, part in parts.items()}, files[-1], metadata)
    edit_tensors(folder, lambda _: dense)
    return files


def by_plan(plan: Plan) -> Callable[[str], int | None]:
    def bits_of(name: str) -> int | None:
        found = (bits for part, bits in plan.items() if f"{part}.weight" in name)
        return next(found, None)

    return bits_of


@pytest.mark.parametrize("zero_points", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_packed_weights_give_the_logits_of_their_values(
    tmp_path: Path, name: str, zero_points: bool
) -> None:
    """LIN-1, LIN-2, LIN-5, LIN-6, LIN-12, LOD-2: fused where formats agree, side by side where
    they do not, biases included."""
    folder = tiny_folder(tmp_path / "dense", "llama", attention_bias=True, tie_word_embeddings=True)
    files = write_blobs(folder, tmp_path / "blobs", by_plan(PLANS[name]), zero_points=zero_points)
    packed = load_model(read_config(folder), files, EXACT)
    dense = loaded(folder)
    assert relative_error(logits(packed, TOKENS), logits(dense, TOKENS)) <= TOLERANCE
    assert packed.facts.weight_bytes < dense.facts.weight_bytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_drafts_get_the_values_of_packed_tables(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    """03 EGL-6, EGL-7, 06 DFL-5, LIN-5: also where a kernel has packed the head its own way."""
    folder = tiny_folder(tmp_path / "dense", "llama", tie_word_embeddings=tied)
    files = write_blobs(folder, tmp_path / "blobs", by_plan({"embed_tokens": 4, "lm_head": 4}))
    model = load_model(read_config(folder), files, placement(dtype))
    assert isinstance(model, SharedTables)
    tensors = load_file(folder / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    head = table if tied else tensors["lm_head.weight"]
    # in bf16 a row's scale is rounded and then its value, each by half a unit in 8 bits at most
    close = float(head.abs().max()) * (2**-7 if dtype == torch.bfloat16 else TOLERANCE)
    ids, hidden = torch.tensor([263, 5, 5]), torch.randn(64)
    torch.testing.assert_close(model.embed(ids).float(), table[ids], rtol=0, atol=close)
    torch.testing.assert_close(model.head_rows(ids).float(), head[ids], rtol=0, atol=close)
    raw = model.raw_logits(hidden.to(dtype)[None]).float()[0]
    torch.testing.assert_close(raw, head @ hidden, rtol=0, atol=64 * close)


def test_neighbours_of_one_format_are_fused() -> None:
    """LIN-6"""
    dense, (parts, _) = torch.zeros(4, 64), pack(torch.randn(4, 64), 4)
    packed = packed_weight(parts[""], parts[".scale"], parts[".bias"], QuantFormat("int4", GROUP))
    bare = packed_weight(parts[""], parts[".scale"], None, QuantFormat("int4", GROUP))
    assert fusable_runs([dense, dense, packed, packed, packed, bare, dense]) == [2, 3, 1, 1]
    assert fusable_runs([]) == []


@pytest.mark.parametrize("suffix", [".global_scale", "_scale_2"])
@pytest.mark.parametrize("scale", [torch.tensor(3.0), torch.linspace(0.5, 2.0, 48)])
def test_global_scales_multiply_the_product(tmp_path: Path, suffix: str, scale: Tensor) -> None:
    """LIN-1, LIN-4: scalar or one a row; the other parts of the fusion have none."""
    folder = tiny_folder(tmp_path / "dense", "llama")
    files = write_blobs(folder, tmp_path / "blobs", by_plan({"_proj": 4}))
    name = "model.layers.1.self_attn.k_proj.weight"
    save_file({name + suffix: scale}, tmp_path / "scale.safetensors")
    packed = load_model(read_config(folder), [*files, tmp_path / "scale.safetensors"], EXACT)
    edit_tensors(folder, lambda tensors: tensors | {name: tensors[name] * scale.reshape(-1, 1)})
    assert relative_error(logits(packed, TOKENS), logits(loaded(folder), TOKENS)) <= TOLERANCE


@pytest.mark.parametrize("part", ["", ".scale", ".bias"])
def test_a_misshapen_part_is_named_with_both_shapes(tmp_path: Path, part: str) -> None:
    """(F13)"""
    folder = tiny_folder(tmp_path / "dense", "llama")
    files = write_blobs(folder, tmp_path / "blobs", by_plan({"down_proj": 4}))
    name = "model.layers.1.mlp.down_proj.weight"
    (file,) = [file for file in files if f"{name}.scale" in load_file(file)]
    parts = load_file(file)
    parts[name + part] = parts[name + part][:-1].clone()
    save_file(parts, file, {"quant_type": "int4", "group_size": str(GROUP)})
    with pytest.raises(LoadError, match=rf"{name}\S* has shape \[63, \d+\] .* \[64, \d+\]"):
        load_model(read_config(folder), files, placement())


def test_words_of_another_type_are_refused(tmp_path: Path) -> None:
    """(F13)"""
    folder = tiny_folder(tmp_path / "dense", "llama")
    files = write_blobs(folder, tmp_path / "blobs", by_plan({"down_proj": 4}))
    name = "model.layers.0.mlp.down_proj.weight"
    (file,) = [file for file in files if f"{name}.scale" in load_file(file)]
    parts = load_file(file)
    parts[name] = parts[name].view(torch.int32)
    save_file(parts, file, {"quant_type": "int4", "group_size": str(GROUP)})
    with pytest.raises(LoadError, match=f"{name} must hold 32-bit words"):
        load_model(read_config(folder), files, placement())


def test_a_dry_load_checks_packed_weights_too(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "dense", "llama", tie_word_embeddings=True)
    files = write_blobs(folder, tmp_path / "blobs", by_plan(PLANS["a tied table"]))
    dry = placement(device=torch.device("meta"))
    assert load_model(read_config(folder), files, dry).facts.layers == 2
    with pytest.raises(LoadError, match="is missing"):
        load_model(read_config(folder), files[:-3], dry)
