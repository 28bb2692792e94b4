"""A router and the MLPs that it chooses among, in plain torch: what the C++ pass means (QWN-12).

All of it in float32: a chance that was rounded may choose other experts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.layer_operands import ExpertOperands, MlpOperands
from forerun.kernels.operands import BiasedLinear

Product = Callable[[BiasedLinear, Tensor], Tensor]  # [n, in] to [n, out]


@dataclass(frozen=True, slots=True)
class Routes:
    """The experts that each row takes, the likeliest first; of equals the one of the smaller id."""

    experts: Tensor  # [n, top] int64
    weights: Tensor  # [n, top] float32

    @property
    def top(self) -> int:
        return self.experts.shape[1]


def route(x: Tensor, router: Tensor, top: int, *, renormalised: bool) -> Routes:
    """
    x             [n, hidden]
    router        [experts, hidden] float32
    renormalised  the weights of a row sum to 1
    """
    chances = functional.linear(x.float(), router).softmax(-1)
    weights, experts = chances.sort(stable=True, dim=-1, descending=True)
    weights, experts = weights[:, :top], experts[:, :top]
    if renormalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routes(experts, weights)


def experts(part: ExpertOperands, x: Tensor, product: Product) -> Tensor:
    """[n, hidden] float32 to the same shape.

    A row's experts are added from the likeliest down, and then the shared one.
    """
    routes = route(x, part.router, part.top, renormalised=part.renormalised)
    summed = torch.zeros_like(x)
    for row in range(len(x)):
        for expert, weight in zip(routes.experts[row], routes.weights[row], strict=True):
            made = gated_mlp(part.experts[int(expert)], x[row : row + 1], product)
            summed[row] += weight * made[0]
    if part.shared is None:
        return summed
    made = gated_mlp(part.shared, x, product)
    if part.shared_gate is not None:
        made = made * functional.linear(x, part.shared_gate[None]).sigmoid()
    return summed + made


def gated_mlp(part: MlpOperands, x: Tensor, product: Product) -> Tensor:
    """[n, hidden] to the same shape."""
    gate, up = product(part.gate, x), product(part.up, x)
    tanh = part.activation == "gelu_pytorch_tanh"
    activated = functional.gelu(gate, approximate="tanh") if tanh else functional.silu(gate)
    return product(part.down, activated * up)
