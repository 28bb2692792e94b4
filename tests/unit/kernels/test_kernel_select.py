"""Which implementation serves, and what the log says of those that do not (KER-1)."""

import logging

import pytest
import torch

from fixtures.kernels_parity import random_affine
from forerun.kernels import select
from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.linear_affine.torch_int4 import TorchInt4Linear
from forerun.kernels.rms_norm.layer_norm_form import LayerNormForm
from forerun.kernels.rms_norm.reference import ReferenceRmsNorm
from forerun.kernels.select import KernelChoice, affine_linear, rms_norm

OFF = KernelChoice(cpu_kernels=False)


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    select._log_once.cache_clear()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_cpu_with_bfloat16_activations_gets_the_packed_product(bits: int) -> None:
    """KER-1"""
    weight = random_affine(16, 64, bits=bits, group=32)
    assert isinstance(affine_linear(weight, torch.bfloat16, KernelChoice()), TorchInt4Linear)


@pytest.mark.parametrize(
    ("dtype", "choice", "group", "reason"),
    [
        (torch.float32, KernelChoice(), 32, "torch.float32"),
        (torch.bfloat16, OFF, 32, "switched off"),
        (torch.bfloat16, KernelChoice(), 16, "groups of 16"),
    ],
)
def test_a_fast_path_not_taken_is_logged_once_with_the_reason(
    dtype: torch.dtype,
    choice: KernelChoice,
    group: int,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """KER-1"""
    weight = random_affine(16, 64, bits=4, group=group)
    with caplog.at_level(logging.INFO, logger="forerun"):
        for _ in range(2):
            assert isinstance(affine_linear(weight, dtype, choice), ReferenceLinear)
    (record,) = caplog.records
    assert reason in record.getMessage()


def test_weights_elsewhere_are_served_by_the_reference() -> None:
    """KER-1: the meta device stands for any that is no CPU."""
    weight = random_affine(16, 64, bits=4, group=32)
    there = type(weight)(weight.words.to("meta"), weight.scale.to("meta"), None, 4)
    assert isinstance(affine_linear(there, torch.bfloat16, KernelChoice()), ReferenceLinear)
    norm = rms_norm(torch.ones(4, device="meta"), 1e-6, KernelChoice())
    assert isinstance(norm, ReferenceRmsNorm)


def test_norms_take_the_layer_norm_form_where_it_can_serve() -> None:
    """KER-1, KER-3"""
    assert isinstance(rms_norm(torch.ones(4), 1e-6, KernelChoice()), LayerNormForm)
    assert isinstance(rms_norm(torch.ones(4), 1e-6, OFF), ReferenceRmsNorm)
    assert isinstance(rms_norm(torch.ones(2, 4), 1e-6, KernelChoice()), ReferenceRmsNorm)
