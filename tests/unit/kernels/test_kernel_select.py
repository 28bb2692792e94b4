"""Which implementation serves, and what the log says of those that do not (KER-1)."""

import logging

import pytest
import torch

from fixtures.kernels_parity import random_affine
from fixtures.native_kernels import native_library
from forerun.kernels import select
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.linear_affine.torch_int4 import TorchInt4Linear
from forerun.kernels.operands import BlockScaledWeight
from forerun.kernels.output_head.native import NativeHead
from forerun.kernels.rms_norm.layer_norm_form import LayerNormForm
from forerun.kernels.rms_norm.reference import ReferenceRmsNorm
from forerun.kernels.select import (
    KernelChoice,
    LinearKernel,
    beside,
    output_head,
    quantised_linear,
    rms_norm,
)
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat

OFF = KernelChoice(cpu_kernels=False)
BESIDE_TORCH = KernelChoice(own_threads=False)


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    select._log_once.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_linear_on_a_cpu_is_served_in_cpp(bits: int, dtype: torch.dtype) -> None:
    """KER-1"""
    native_library()
    weight = random_affine(16, 64, bits=bits, group=32)
    assert isinstance(quantised_linear(weight, dtype, KernelChoice()), NativeLinear)


NOT_BESIDE, SWITCHED_OFF = "on PyTorch's threads", "CPU kernels are switched off"


@pytest.mark.parametrize(
    ("dtype", "choice", "group", "serves", "reasons"),
    [
        (torch.bfloat16, BESIDE_TORCH, 32, TorchInt4Linear, [NOT_BESIDE]),
        (torch.float32, BESIDE_TORCH, 32, ReferenceLinear, [NOT_BESIDE, "torch.float32"]),
        (torch.float16, KernelChoice(), 32, ReferenceLinear, ["activations are torch.float16"]),
        (torch.bfloat16, OFF, 32, ReferenceLinear, [f"call: {SWITCHED_OFF}"]),
        (torch.bfloat16, KernelChoice(), 16, ReferenceLinear, ["groups of 16", "groups of 16 col"]),
    ],
)
def test_a_fast_path_not_taken_is_logged_once_with_the_reason(
    dtype: torch.dtype,
    choice: KernelChoice,
    group: int,
    serves: type[LinearKernel],
    reasons: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """KER-1"""
    native_library()
    weight = random_affine(16, 64, bits=4, group=group)
    with caplog.at_level(logging.INFO, logger="forerun"):
        for _ in range(2):
            assert isinstance(quantised_linear(weight, dtype, choice), serves)
    (record,) = caplog.records
    for reason in reasons:
        assert reason in record.getMessage()


@pytest.mark.parametrize(
    ("dense_bytes", "odd_bytes", "own"), [(0, 0, True), (50, 49, True), (100, 0, False)]
)
def test_separate_linears_are_served_in_cpp_where_it_can_serve_most_bytes(
    dense_bytes: int, odd_bytes: int, own: bool
) -> None:
    """KER-1"""
    native_library()
    served = random_affine(16, 64, bits=4, group=32)
    odd = random_affine(16, 64, bits=4, group=16)
    weights = [(served, 100), (None, dense_bytes), (odd, odd_bytes)]
    chosen = KernelChoice(threads=3)
    assert beside(weights, torch.bfloat16, chosen) == KernelChoice(threads=3, own_threads=own)
    assert not beside(weights, torch.bfloat16, OFF).own_threads
    assert not beside([], torch.bfloat16, chosen).own_threads


def block_scaled(kind: str) -> BlockScaledWeight:
    form = QuantFormat(kind, 16 if kind == "nvfp4" else 32)
    data = quantise(torch.randn(16, 64), form).data
    assert isinstance(data, BlockScaledWeight)
    return data


def test_integer_kernels_serve_mxfp4() -> None:
    """KER-1, LIN-8: by its affine form; in bfloat16 beside PyTorch's threads too."""
    native_library()
    weight, bf16 = block_scaled("mxfp4"), torch.bfloat16
    assert isinstance(quantised_linear(weight, bf16, KernelChoice()), NativeLinear)
    assert isinstance(quantised_linear(weight, bf16, BESIDE_TORCH), TorchInt4Linear)
    assert isinstance(quantised_linear(weight, bf16, OFF), ReferenceLinear)
    assert isinstance(output_head(weight, bf16, KernelChoice()), NativeHead)
    assert beside([(weight, 100), (None, 50)], bf16, KernelChoice()).own_threads


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_other_block_scaled_weights_are_dequantised_and_the_log_says_so_once(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """KER-1, LIN-8"""
    native_library()
    with caplog.at_level(logging.INFO, logger="forerun"):
        for _ in range(2):
            served = quantised_linear(block_scaled(kind), torch.bfloat16, KernelChoice())
            assert isinstance(served, ReferenceLinear)
    (record,) = caplog.records
    assert f"{kind} linear dequantises its weight for each call" in record.getMessage()
    assert f"there is no integer form of {kind}" in record.getMessage()
    assert not beside([(block_scaled(kind), 100)], torch.bfloat16, KernelChoice()).own_threads


def test_weights_elsewhere_are_served_by_the_reference() -> None:
    """KER-1: the meta device stands for any that is no CPU."""
    weight = random_affine(16, 64, bits=4, group=32)
    there = type(weight)(weight.words.to("meta"), weight.scale.to("meta"), None, 4)
    assert isinstance(quantised_linear(there, torch.bfloat16, KernelChoice()), ReferenceLinear)
    norm = rms_norm(torch.ones(4, device="meta"), 1e-6, KernelChoice())
    assert isinstance(norm, ReferenceRmsNorm)


def test_norms_take_the_layer_norm_form_where_it_can_serve() -> None:
    """KER-1, KER-3"""
    assert isinstance(rms_norm(torch.ones(4), 1e-6, KernelChoice()), LayerNormForm)
    assert isinstance(rms_norm(torch.ones(4), 1e-6, OFF), ReferenceRmsNorm)
    assert isinstance(rms_norm(torch.ones(2, 4), 1e-6, KernelChoice()), ReferenceRmsNorm)
