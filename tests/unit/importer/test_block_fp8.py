"""8-bit floats with a scale a block: what they become, against a loop over elements (07 PRQ-4)."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.base.errors import ForerunError
from forerun.importer import quantising
from forerun.importer.sources import folder_source
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.parts import stored_parts
from unit.importer.source_folders import imported, write_folder

UP = "layers.0.mlp.up_proj.weight"
TABLE = "embed_tokens.weight"
BLOCKS = {"quantization_config": {"weight_block_size": [128, 128]}}


def block_fp8(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random codes, scales, and the bfloat16 values that they stand for, one by one."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 0x7F, (rows, columns), generator=generator)  # no NaN
    codes += 0x80 * torch.randint(0, 2, (rows, columns), generator=generator)
    weight = codes.to(torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-columns // 128), generator=generator) + 0.01
    expected = torch.empty(rows, columns, dtype=torch.bfloat16)
    numbers = weight.float()
    for row in range(rows):
        for start in range(0, columns, 128):
            part = slice(start, start + 128)
            expected[row, part] = numbers[row, part] * scale[row // 128, start // 128]
    return weight, scale, expected


def stored(expected: Tensor, name: str) -> dict[str, Tensor]:
    parts = stored_parts(quantise(expected, QuantFormat("mxfp8", 32)))
    return {name + suffix: part for suffix, part in parts.items()}


def same(found: Tensor, expected: Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(
        found.view(torch.uint8), expected.view(torch.uint8)
    )


@pytest.mark.parametrize("suffix", ["_scale_inv", "_scale"])
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (200, 320), (1, 1056), (130, 64)])
def test_blocks_become_mxfp8_by_way_of_bfloat16(
    tmp_path: Path, rows: int, columns: int, suffix: str
) -> None:
    """PRQ-4, CLS-3, 07 T5: blocks that the edges cut, either name of the scales; no request."""
    weight, scale, expected = block_fp8(rows, columns)
    tensors = {UP: weight, UP + suffix: scale, "layers.0.mlp.up_proj.input_scale": torch.ones(())}
    found, metadata = imported(tmp_path, tensors, **BLOCKS)
    assert metadata == {UP: {"quant_type": "mxfp8", "group_size": "32"}}
    wanted = stored(expected, UP)
    assert found.keys() == wanted.keys()
    assert all(same(found[name], wanted[name]) for name in wanted)


def test_the_inverse_scale_is_preferred(tmp_path: Path) -> None:
    """PRQ-4."""
    weight, scale, expected = block_fp8(128, 128)
    tensors = {UP: weight, f"{UP}_scale": 2 * scale, f"{UP}_scale_inv": scale}
    found, _ = imported(tmp_path, tensors, **BLOCKS)
    wanted = stored(expected, UP)
    assert all(same(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("slab_bytes", [1, 1000, 10**6])
def test_declined_weights_are_stored_as_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slab_bytes: int
) -> None:
    """PRQ-4: never as 8-bit floats; however many rows are read at a time."""
    monkeypatch.setattr(quantising, "SLAB_BYTES", slab_bytes)
    weight, scale, expected = block_fp8(200, 320)
    ragged, ragged_scale, ragged_expected = block_fp8(64, 72, seed=1)
    other = UP.replace("up", "gate")
    tensors = {
        TABLE: weight,
        f"{TABLE}_scale_inv": scale,
        other: ragged,
        f"{other}_scale_inv": ragged_scale,
        "norm.weight": torch.ones(3),
    }
    found, metadata = imported(tmp_path, tensors, **BLOCKS)
    assert same(found[TABLE], expected)
    assert same(found[other], ragged_expected)
    assert found.keys() == {TABLE, other, "norm.weight"}
    assert set(map(str, metadata.values())) == {"{}"}


def test_experts_are_stacked_with_their_scales(tmp_path: Path) -> None:
    """PRQ-4, PLN-2: rows that are no multiple of a block start anew at each expert."""
    parts = [block_fp8(160, 64, seed) for seed in range(3)]
    tensors: dict[str, Tensor] = {}
    for expert, (weight, scale, _) in enumerate(parts):
        name = f"mlp.experts.{expert}.up_proj.weight"
        tensors |= {name: weight, f"{name}_scale_inv": scale}
    found, _ = imported(tmp_path, tensors, **BLOCKS)
    name = "mlp.experts.up_proj.weight"
    expected = torch.cat([values for *_, values in parts])
    assert same(found[name].flatten(0, 1), stored(expected, name)[name])
    assert found[name].shape == (3, 160, 16)


def test_stacked_experts_have_stacked_scales(tmp_path: Path) -> None:
    """PRQ-4, PLN-3."""
    parts = [block_fp8(160, 64, seed) for seed in range(2)]
    name = "mlp.experts.up_proj"
    tensors = {
        name: torch.stack([weight.view(torch.uint8) for weight, *_ in parts]).view(
            torch.float8_e4m3fn
        ),
        f"{name}_scale_inv": torch.stack([scale for _, scale, _ in parts]),
    }
    found, _ = imported(tmp_path, tensors, **BLOCKS)
    expected = torch.cat([values for *_, values in parts])
    assert same(found[name].flatten(0, 1), stored(expected, name)[name])


def test_a_requested_type_is_refused(tmp_path: Path) -> None:
    """CLS-3."""
    weight, scale, _ = block_fp8(128, 128)
    folder = write_folder(tmp_path, {UP: weight, f"{UP}_scale_inv": scale}, **BLOCKS)
    with pytest.raises(ForerunError, match=r"quantize is mxfp8.*block fp8 already"):
        folder_source(folder, quantize="mxfp8")


def test_a_nan_is_named(tmp_path: Path) -> None:
    """F13: also as the eighth bit's pattern."""
    weight, scale, _ = block_fp8(128, 128)
    weight.view(torch.uint8)[3, 3] = 0xFF
    with pytest.raises(ForerunError, match=rf"{UP} holds values"):
        imported(tmp_path, {UP: weight, f"{UP}_scale_inv": scale}, **BLOCKS)
