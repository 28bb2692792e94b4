"""Norms with their weights."""

import pytest
import torch

from forerun.kernels.select import KernelChoice
from forerun.nn.norm import RMSNorm

CHOICES = [KernelChoice(), KernelChoice(cpu_kernels=False)]


@pytest.mark.parametrize("kernels", CHOICES, ids=["fast", "reference"])
def test_a_shifted_norm_adds_one_to_its_weight_in_float32(kernels: KernelChoice) -> None:
    """GM3-4: 1 + 2**-9 is no bfloat16, and still scales the result."""
    x = torch.randn(3, 64).bfloat16()
    weight = torch.full((64,), 2**-9).bfloat16()
    got = RMSNorm(weight, 1e-6, shift=True, kernels=kernels)(x)
    wide = RMSNorm(None, 1e-6)(x.float()) * (1 + 2**-9)
    assert torch.equal(got, wide.bfloat16())


@pytest.mark.parametrize("kernels", CHOICES, ids=["fast", "reference"])
def test_a_norm_without_weight_gives_rows_of_unit_mean_square(kernels: KernelChoice) -> None:
    got = RMSNorm(None, 0.0, kernels=kernels)(torch.randn(5, 96) * 7)
    torch.testing.assert_close(got.square().mean(-1), torch.ones(5))


def test_a_weight_for_each_head() -> None:
    """QW3-1: queries and keys are normed as one tensor."""
    x, weight = torch.randn(2, 3, 4, 16), torch.randn(4, 16)
    got = RMSNorm(weight, 1e-6)(x)
    for head in range(4):
        torch.testing.assert_close(got[:, :, head], RMSNorm(weight[head], 1e-6)(x[:, :, head]))


def test_bytes_are_those_of_the_weights() -> None:
    assert RMSNorm(None, 1e-6).nbytes == 0
    assert RMSNorm(torch.zeros(8), 1e-6).nbytes == 32
