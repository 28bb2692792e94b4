"""Gated activations of MLPs. The input is the fused output [gate | up] of one linear (LIN-10)."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up; [..., 2 * n] to [..., n]."""
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) * up with the tanh form of GELU; [..., 2 * n] to [..., n]."""
    gate, up = gate_up.chunk(2, -1)
    return functional.gelu(gate, approximate="tanh").mul_(up)


GATED: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": swiglu,
    "gelu_pytorch_tanh": geglu,
}
"""By the `hidden_act` of a config; an activation not named here is a load error (CON-14)."""
