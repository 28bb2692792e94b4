"""A mixture of experts of separate operations: the router, and who computes what (LIN-9)."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.experts.reference import Routes, route

SORTED_FROM = 64  # rows; fewer of them seldom share an expert


class Expert(Protocol):
    """One of them."""

    def __call__(self, x: Tensor) -> Tensor:
        """[n, hidden] to the same shape."""
        ...

    @property
    def nbytes(self) -> int: ...


class Experts:
    """The sum of what a row's likeliest experts make of it, and of what a shared one does."""

    def __init__(
        self,
        router: Tensor,
        experts: Sequence[Expert],
        top: int,
        *,
        renormalised: bool,
        shared: Expert | None = None,
        shared_gate: Tensor | None = None,
        sorted_from: int = SORTED_FROM,
    ) -> None:
        """
        router        [experts, hidden] float32
        top           experts a row
        renormalised  the weights of a row sum to 1
        shared_gate   [hidden] float32: the sigmoid of its product weighs the shared expert
        """
        self._router, self._experts, self._top = router, tuple(experts), top
        self._renormalised, self._sorted_from = renormalised, sorted_from
        self._shared, self._shared_gate = shared, shared_gate

    def __call__(self, x: Tensor) -> Tensor:
        """[B, L, hidden] to the same shape and dtype.

        Experts are weighed in the dtype of `x` and added in float32, from a row's likeliest down:
        its sum depends neither on the order in which they compute nor on the rows beside it.
        """
        rows = x.flatten(0, 1)
        routes = route(rows, self._router, self._top, renormalised=self._renormalised)
        dispatch = self._by_expert if len(rows) >= self._sorted_from else self._one_by_one
        made = dispatch(rows, routes)
        weights = routes.weights.to(x.dtype).float()
        summed = self._of_shared(rows)
        for place in range(self._top):
            summed += made[:, place].float() * weights[:, place, None]
        return summed.to(x.dtype).view_as(x)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        gate = 0 if self._shared_gate is None else self._shared_gate.nbytes
        shared = 0 if self._shared is None else self._shared.nbytes
        own = sum(expert.nbytes for expert in self._experts)
        return self._router.nbytes + gate + shared + own

    def _of_shared(self, rows: Tensor) -> Tensor:
        """[n, hidden] float32."""
        if self._shared is None:
            return torch.zeros(rows.shape, dtype=torch.float32, device=rows.device)
        made = self._shared(rows).float()
        if self._shared_gate is None:
            return made
        return made * functional.linear(rows.float(), self._shared_gate[None]).sigmoid()

    def _one_by_one(self, rows: Tensor, routes: Routes) -> Tensor:
        """[n, top, hidden]: each pair of a row and an expert alone."""
        made = rows.new_empty(len(rows), routes.top, rows.shape[1])
        for row, chosen in enumerate(routes.experts.tolist()):
            for place, expert in enumerate(chosen):
                made[row, place] = self._experts[expert](rows[row : row + 1])[0]
        return made

    def _by_expert(self, rows: Tensor, routes: Routes) -> Tensor:
        """The same, where each expert computes its rows at once."""
        pairs = routes.experts.flatten()
        order = pairs.argsort(stable=True)
        gathered = rows[order // routes.top]
        counts = torch.bincount(pairs, minlength=len(self._experts)).tolist()
        made = torch.empty_like(gathered)
        first = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                made[order[first : first + count]] = expert(gathered[first : first + count])
                first += count
        return made.view(len(rows), routes.top, -1)
