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
from forerun.kernels.rms_norm.layer_norm_form import LayerNormForm
from forerun.kernels.rms_norm.reference import ReferenceRmsNorm
from forerun.kernels.select import KernelChoice, LinearKernel, beside, quantised_linear, rms_norm

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
