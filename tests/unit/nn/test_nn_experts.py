"""Mixtures of experts of separate operations: who computes what, and in which order (LIN-9)."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from forerun.nn.experts import SORTED_FROM, Experts

HIDDEN, COUNT = 16, 7


class Noted:
    """An expert whose rows do not depend on those beside them: it scales each by its number."""

    nbytes = 8

    def __init__(self, number: int, calls: list[tuple[int, int]]) -> None:
        self._number, self._calls = number, calls

    def __call__(self, x: Tensor) -> Tensor:
        self._calls.append((self._number, len(x)))
        return x * (self._number + 1)


def mixture(
    calls: list[tuple[int, int]], *, top: int = 3, renormalised: bool = True, sorted_from: int
) -> Experts:
    router = torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(5))
    experts = [Noted(number, calls) for number in range(COUNT)]
    return Experts(router, experts, top, renormalised=renormalised, sorted_from=sorted_from)


def rows(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(1, count, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("top", [1, 3, COUNT])
def test_sorted_and_unsorted_dispatch_give_the_same_bits(
    top: int, count: int, dtype: torch.dtype
) -> None:
    """T4, LIN-9"""
    one_by_one, by_expert = ([], [])
    x = rows(count, dtype)
    unsorted = mixture(one_by_one, top=top, sorted_from=1000)(x)
    assert unsorted.dtype == dtype
    assert torch.equal(mixture(by_expert, top=top, sorted_from=1)(x), unsorted)
    assert len(one_by_one) == count * top
    assert len(by_expert) <= COUNT
    assert by_expert == sorted(by_expert)
    assert sum(size for _, size in by_expert) == count * top


def test_rows_are_sorted_by_expert_from_64_on() -> None:
    """LIN-9: rows of the whole batch count."""
    for count, most in ((SORTED_FROM - 1, 3 * SORTED_FROM), (SORTED_FROM, COUNT)):
        calls: list[tuple[int, int]] = []
        x = rows(count).view(1, count, HIDDEN)
        mixture(calls, sorted_from=SORTED_FROM)(x)
        assert len(calls) <= most
    assert SORTED_FROM == 64
    calls = []
    mixture(calls, sorted_from=SORTED_FROM)(rows(64).view(2, 32, HIDDEN))
    assert len(calls) <= COUNT


@pytest.mark.parametrize("sorted_from", [1, 1000])
def test_a_row_does_not_depend_on_those_beside_it(sorted_from: int) -> None:
    """WID-2, for a reference: whoever shares its experts, wherever it stands, but for the last bits
    of the router's products."""
    alone = mixture([], sorted_from=sorted_from)
    x = rows(20)
    together = alone(x)
    one_by_one = torch.cat([alone(row) for row in x.split(1, 1)], 1)
    torch.testing.assert_close(one_by_one, together, rtol=0, atol=1e-5)
    torch.testing.assert_close(alone(x.flip(1)).flip(1), together, rtol=0, atol=1e-5)


def test_experts_are_weighed_in_the_dtype_of_activations() -> None:
    """Q3M-2: the router in float32, whatever it reads; its weights are then rounded."""
    x = rows(5, torch.bfloat16)
    router = torch.randn(COUNT, HIDDEN, generator=torch.Generator().manual_seed(5))
    chances = functional.linear(x[0].float(), router).softmax(-1)
    weights, chosen = chances.topk(3)
    weights = (weights / weights.sum(-1, keepdim=True)).to(torch.bfloat16).float()
    scaled = x[0, :, None] * (chosen + 1)[..., None].to(torch.bfloat16)
    wanted = torch.zeros(5, HIDDEN)
    for place in range(3):
        wanted += scaled[:, place].float() * weights[:, place, None]
    assert torch.equal(mixture([], sorted_from=64)(x)[0], wanted.to(torch.bfloat16))


def test_the_shared_expert_is_added_by_its_gate() -> None:
    """QWN-12: with a gate the sigmoid of its product, without one as it is."""
    router, gate, x = torch.zeros(2, HIDDEN), torch.randn(HIDDEN), rows(3)
    silent = [Noted(-1, []), Noted(-1, [])]
    for given in (None, gate):
        experts = Experts(
            router, silent, 1, renormalised=False, shared=Noted(1, []), shared_gate=given
        )
        factor = 1 if given is None else (x @ gate).sigmoid()[..., None]
        torch.testing.assert_close(experts(x), 2 * x * factor)
        assert experts.nbytes == 3 * 8 + router.nbytes + (0 if given is None else gate.nbytes)
