"""Weights that MLX quantised (`scripts/mlx_vectors.py`) have the values that it gives them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight
from forerun.quant.resolve import resolve
from forerun.quant.stored import packed_weight

VECTORS = load_file(Path(__file__).parents[2] / "fixtures" / "mlx_vectors.safetensors")
VALUES = VECTORS["values"]
MODES = sorted({name.removesuffix(".weight") for name in VECTORS if name.endswith(".weight")})


def mlx_weight(name: str) -> tuple[PackedWeight, Tensor]:
    """The weight as a load reads it, stated as MLX states it in a config, and its values."""
    mode, bits, group = name.split(".")
    words, scale = VECTORS[f"{name}.weight"], VECTORS[f"{name}.scales"]
    stated = {"mode": mode, "bits": int(bits), "group_size": int(group)}
    columns = words.shape[1], scale.shape[1]
    form = resolve("w.weight", columns, metadata={}, config={"quantization": stated})
    weight = packed_weight(words, scale, VECTORS.get(f"{name}.biases"), form)
    return weight, VECTORS[f"{name}.values"]


@pytest.mark.parametrize("name", MODES)
def test_dequantised_values_are_those_of_mlx(name: str) -> None:
    """LIN-2, LIN-3, LIN-8, PRQ-3: bit for bit where products of code and scale are exact."""
    weight, values = mlx_weight(name)
    got = weight.dequantise(torch.float32)
    if weight.format.affine:  # MLX may fuse product and sum, which rounds once and not twice
        torch.testing.assert_close(
            got, values, rtol=2**-23, atol=2**-23 * float(values.abs().max())
        )
    else:
        assert torch.equal(got, values)


@pytest.mark.parametrize("name", [name for name in MODES if "affine" not in name])
def test_our_codes_err_no_more_than_those_of_mlx(name: str) -> None:
    """F05: in the mean of squares of each row."""
    weight, theirs = mlx_weight(name)
    form = QuantFormat(weight.format.name, weight.format.group)
    ours = quantise(VALUES, form, torch.float32).dequantise(torch.float32)
    error, their_error = ((x - VALUES).square().mean(1).sqrt() for x in (ours, theirs))
    assert (error <= their_error).all()
