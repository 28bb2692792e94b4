"""The mixture of experts against a sum over all of them, of which most weigh nothing (QWN-12)."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fixtures.kernels_parity import random_affine
from forerun.kernels.decoder_layer.reference import exact_product
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.experts.reference import experts, route
from forerun.kernels.layer_operands import ExpertOperands, MlpOperands
from forerun.kernels.operands import BiasedLinear

HIDDEN, INNER, SHARED, EXPERTS = 64, 32, 96, 7


def mlp(inner: int, seed: int) -> MlpOperands:
    def part(rows: int, columns: int, place: int) -> BiasedLinear:
        weight = random_affine(
            rows, columns, bits=4, group=32, seed=10 * seed + place, magnitude=0.3
        )
        return BiasedLinear(weight, None)

    return MlpOperands(
        part(inner, HIDDEN, 1), part(inner, HIDDEN, 2), part(HIDDEN, inner, 3), "silu"
    )


def mixture(*, top: int, renormalised: bool, shared: bool) -> ExpertOperands:
    seeded = torch.Generator().manual_seed(3)
    return ExpertOperands(
        router=torch.randn(EXPERTS, HIDDEN, generator=seeded) / 4,
        top=top,
        renormalised=renormalised,
        experts=[mlp(INNER, seed) for seed in range(EXPERTS)],
        shared=mlp(SHARED, 20) if shared else None,
        shared_gate=torch.randn(HIDDEN, generator=seeded) / 8 if shared else None,
    )


def in_double(part: MlpOperands, x: Tensor) -> Tensor:
    gate, up, down = (
        dequantise(one.weight, torch.float32).double() for one in (part.gate, part.up, part.down)
    )
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("renormalised", [False, True])
@pytest.mark.parametrize("top", [1, 3, EXPERTS])
def test_a_row_is_the_weighed_sum_of_its_likeliest_experts(
    top: int, renormalised: bool, shared: bool
) -> None:
    """QWN-12, Q3M-2. Float32 against float64: 1e-5 of the largest number."""
    part = mixture(top=top, renormalised=renormalised, shared=shared)
    x = torch.randn(9, HIDDEN, generator=torch.Generator().manual_seed(1))
    wide = x.double()
    chances = (wide @ part.router.double().T).softmax(-1)
    least = chances.topk(top).values[:, -1:]
    weights = chances * (chances >= least)
    if renormalised:
        weights = weights / weights.sum(-1, keepdim=True)
    wanted = sum(weights[:, e, None] * in_double(part.experts[e], wide) for e in range(EXPERTS))
    if part.shared is not None and part.shared_gate is not None:
        gate = (wide @ part.shared_gate.double()[:, None]).sigmoid()
        wanted = wanted + gate * in_double(part.shared, wide)
    assert isinstance(wanted, Tensor)
    ours = experts(part, x, exact_product)
    assert float((ours - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


def test_of_experts_with_equal_chances_the_first_are_taken() -> None:
    router = torch.zeros(64, HIDDEN)  # so many that a sort for speed alone would mix them
    routes = route(torch.randn(3, HIDDEN), router, 2, renormalised=True)
    assert routes.experts.tolist() == [[0, 1]] * 3
    assert routes.weights.tolist() == [[0.5, 0.5]] * 3
