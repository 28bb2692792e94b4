"""Gated activations over the fused projection of gate and up."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from forerun.nn.activation import GATED, geglu, swiglu


@pytest.mark.parametrize(
    ("gated", "activation"),
    [
        (swiglu, lambda g: g * torch.sigmoid(g)),
        (geglu, lambda g: torch.nn.functional.gelu(g, approximate="tanh")),
    ],
)
def test_the_first_half_gates_the_second(
    gated: Callable[[Tensor], Tensor], activation: Callable[[Tensor], Tensor]
) -> None:
    """KER-3"""
    gate, up = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    fused = torch.cat((gate, up), -1)
    kept = fused.clone()
    torch.testing.assert_close(gated(fused), activation(gate) * up)
    assert torch.equal(fused, kept), "the projection is not written to"


def test_the_names_of_configs() -> None:
    """CON-14: what is not named here is no activation."""
    assert GATED["silu"] is swiglu
    assert GATED["gelu_pytorch_tanh"] is geglu
