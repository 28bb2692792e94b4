"""Linears and embeddings over dense and quantised weights."""

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import random_affine
from forerun.kernels.select import KernelChoice
from forerun.nn.embedding import Embedding
from forerun.nn.linear import Linear
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight, fuse_rows

REFERENCE = KernelChoice(cpu_kernels=False)
SCALES = [None, torch.tensor(0.3), torch.linspace(0.5, 2, 32)]


NAMES = ["int4", "int8", "nvfp4", "mxfp4", "mxfp8"]


def packed(name: str = "int4", scale: Tensor | None = None, seed: int = 0) -> PackedWeight:
    form = QuantFormat(name, 16 if name == "nvfp4" else 32)
    if form.affine:
        return PackedWeight(random_affine(32, 64, bits=form.bits, group=32, seed=seed), form, scale)
    values = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed))
    return PackedWeight(quantise(values, form).data, form, scale)


def test_a_dense_linear_with_and_without_bias() -> None:
    """LIN-1"""
    weight, bias, x = torch.randn(5, 8), torch.randn(5), torch.randn(2, 3, 8)
    torch.testing.assert_close(Linear(weight)(x), x @ weight.T)
    torch.testing.assert_close(Linear(weight, bias)(x), x @ weight.T + bias)


@pytest.mark.parametrize("scale", SCALES, ids=["none", "scalar", "rows"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_quantised_linear_is_that_of_its_values(
    name: str, scale: Tensor | None, biased: bool
) -> None:
    """T11, LIN-1, LIN-4: values, times the global scale, plus the bias."""
    weight, x = packed(name, scale), torch.randn(2, 3, 64)
    bias = torch.randn(32) if biased else None
    want = torch.nn.functional.linear(x, weight.dequantise(torch.float32), bias)
    got = Linear(weight, bias, dtype=torch.float32, kernels=REFERENCE)(x)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6 * float(want.abs().max()))
    half = None if bias is None else bias.bfloat16()
    fast = Linear(weight, half, dtype=torch.bfloat16)(x.bfloat16())
    assert fast.dtype == torch.bfloat16
    assert (fast - want).abs().max() <= 0.02 * want.abs().max()


@pytest.mark.parametrize("name", NAMES)
def test_the_global_scale_multiplies_in_float32_and_rounds_once(name: str) -> None:
    """LIN-4: a factor that bfloat16 cannot hold."""
    weight, x = packed(name), torch.randn(3, 64).bfloat16()
    plain = Linear(weight, dtype=torch.bfloat16)(x)
    for factor in (torch.tensor(1.00390625), torch.full((32,), 1.00390625)):
        scaled = PackedWeight(weight.data, weight.format, factor)
        got = Linear(scaled, dtype=torch.bfloat16)(x)
        assert torch.equal(got, (plain.double() * 1.00390625).bfloat16())


def test_fused_linears_give_the_same_outputs() -> None:
    """T11, LIN-6: bit for bit, on the fast path too."""
    first, second = packed(scale=torch.tensor(0.3)), packed(seed=1)
    x = torch.randn(3, 64).bfloat16()
    fused = Linear(fuse_rows([first, second]), dtype=torch.bfloat16)(x)
    apart = [Linear(weight, dtype=torch.bfloat16)(x) for weight in (first, second)]
    assert torch.equal(fused, torch.cat(apart, -1))


@pytest.mark.parametrize("scale", SCALES, ids=["none", "scalar", "rows"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_embedding_gathers_and_dequantises(
    name: str, scale: Tensor | None, dtype: torch.dtype
) -> None:
    """LIN-5: global scale included."""
    weight = packed(name, scale)
    ids = torch.tensor([[0, 31, 7], [7, 7, 1]])
    got = Embedding(weight, dtype=dtype)(ids)
    assert torch.equal(got, weight.dequantise(dtype)[ids])
    assert Embedding(weight, dtype=dtype)(ids[:, :0]).shape == (2, 0, 64)


def test_a_dense_embedding_gathers() -> None:
    table, ids = torch.randn(9, 4), torch.tensor([[8, 0]])
    embedding = Embedding(table)
    assert torch.equal(embedding(ids), table[ids])
    assert (embedding.rows, embedding.width) == (9, 4)


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("kernels", [None, REFERENCE], ids=["fast", "reference"])
def test_a_tied_head_is_the_table_as_a_linear(kernels: KernelChoice | None, name: str) -> None:
    """LIN-5"""
    table, x = packed(name, torch.tensor(0.3)), torch.randn(2, 64).bfloat16()
    embedding = Embedding(table, dtype=torch.bfloat16, kernels=kernels)
    apart = Linear(table, dtype=torch.bfloat16, kernels=kernels)
    assert torch.equal(embedding.as_linear()(x), apart(x))
    assert embedding.as_linear().out_features == 32


def test_a_tied_head_shares_its_storage() -> None:
    """LIN-5: a write to the table shows in the head, and its bytes count once."""
    table = torch.randn(9, 4)
    embedding = Embedding(table)
    head, x = embedding.as_linear(), torch.randn(2, 4)
    table.mul_(2)
    torch.testing.assert_close(head(x), x @ table.T)
    assert (embedding.nbytes, head.nbytes) == (table.nbytes, 0)
    for name in NAMES:
        quantised = Embedding(packed(name), dtype=torch.float32, kernels=REFERENCE)
        assert quantised.as_linear().nbytes == 0


def test_bytes_held_are_those_of_the_layout_that_serves() -> None:
    weight, bias = packed(), torch.zeros(32)
    words, terms = 32 * 64 // 2, 32 * 2 * 2 * 2
    assert Linear(weight, dtype=torch.float32, kernels=REFERENCE).nbytes == weight.nbytes
    fast = Linear(weight, bias, dtype=torch.bfloat16)
    assert fast.nbytes == words + terms + bias.nbytes
    assert Linear(torch.zeros(3, 4), torch.zeros(3)).nbytes == 60
