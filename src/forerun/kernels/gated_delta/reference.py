"""The gated delta rule, step by step. Yang et al. 2024, https://arxiv.org/abs/2412.06464, eq. 10.

S = decay * S
u = beta * (v - S k)
S = S + u k^T
y = S q
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

UNIT_EPSILON = 1e-6  # added to the sum of squares, not to their mean (QWN-9)


class Inputs(Protocol):
    """What steps read, float32. A kernel of one sequence takes B = 1."""

    @property
    def conv(self) -> Tensor:
        """[B, L, channels] raw"""
        ...

    @property
    def keys(self) -> Tensor:
        """[B, L, key_heads, key_dim], of unit length"""
        ...

    @property
    def values(self) -> Tensor:
        """[B, L, value_heads, value_dim]"""
        ...

    @property
    def decay(self) -> Tensor:
        """[B, L, value_heads]"""
        ...

    @property
    def beta(self) -> Tensor:
        """[B, L, value_heads]"""
        ...


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """What L steps read. Value heads are a multiple of key heads, whose rows they share in turn:
    value head h reads key head `h // (Hv / Hk)`.
    """

    queries: Tensor  # [B, L, Hk, Dk]
    keys: Tensor  # [B, L, Hk, Dk]
    values: Tensor  # [B, L, Hv, Dv]
    decay: Tensor  # [B, L, Hv], within [0, 1]
    beta: Tensor  # [B, L, Hv]

    @property
    def length(self) -> int:
        return self.values.shape[1]


@dataclass(frozen=True, slots=True)
class DeltaScan:
    """What L steps made of a state."""

    outputs: Tensor  # [B, L, Hv, Dv] in the dtype of the values
    states: tuple[Tensor, ...]  # [B, Hv, Dv, Dk] float32, one a boundary and the end's (CNV-7)


def stepwise(
    rows: DeltaRows,
    state: Tensor,
    *,
    boundaries: Sequence[int] = (),
    lengths: Tensor | None = None,
) -> DeltaScan:
    """The meaning of the operation. All in float32; only the outputs are rounded.

    state       [B, Hv, Dv, Dk] float32 before the first step; not written to
    boundaries  steps after which the state is wanted, ascending, within the rows
    lengths     [B] real steps of each sequence; None: all. Later ones change nothing (CNV-5) and
                give zeros

    The operations of a step see one step's shapes, so a step gives the same bits whatever stands
    before and after it in the call (KER-4, WID-4).
    """
    dtype, wide = rows.values.dtype, widened(rows, lengths)
    states, outputs = [], []
    wanted = set(boundaries)
    for step in range(rows.length):
        if step in wanted:
            states.append(state)
        state = state * wide.decay[:, step, :, None, None]
        key = wide.keys[:, step, :, None]
        error = wide.values[:, step] - (state * key).sum(-1)
        state += (error * wide.beta[:, step, :, None])[..., None] * key
        outputs.append((state * wide.queries[:, step, :, None]).sum(-1))
    if not outputs:
        return DeltaScan(torch.empty_like(rows.values), (state.clone(),))
    return DeltaScan(torch.stack(outputs, dim=1).to(dtype), (*states, state))


def reference_fold(delta: Tensor, inputs: Inputs, count: int) -> Tensor:
    """The state after so many of the steps, of whose outputs nobody hears."""
    keys = inputs.keys[:, :count]
    rows = DeltaRows(
        keys, keys, inputs.values[:, :count], inputs.decay[:, :count], inputs.beta[:, :count]
    )
    (end,) = stepwise(rows, delta).states
    return end


def unit(rows: Tensor) -> Tensor:
    """Queries or keys [..., D] at unit length, float32."""
    wide = rows.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + UNIT_EPSILON)


def decisions(gates: Tensor, step_bias: Tensor, log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """How much of the state is kept, and of the new value taken: decay, beta [..., Hv] (QWN-9).

    gates  [..., 2 * Hv] float32, of beta, then of alpha: a decay near 1 that is rounded to bfloat16
           loses the layer's long memory
    """
    beta, alpha = gates.chunk(2, -1)
    steps = functional.softplus(alpha + step_bias)
    return torch.exp(-steps * log_decay.exp()), beta.sigmoid()


def widened(rows: DeltaRows, lengths: Tensor | None) -> DeltaRows:
    """Float32 rows, a key and a query a value head, padding turned into steps without effect."""
    shared = rows.values.shape[2] // rows.keys.shape[2]
    queries, keys = rows.queries.float(), rows.keys.float()
    if shared > 1:
        queries = queries.repeat_interleave(shared, dim=2)
        keys = keys.repeat_interleave(shared, dim=2)
    wide = DeltaRows(
        queries,
        keys,
        rows.values.float(),
        rows.decay.float(),
        rows.beta.float(),
    )
    if lengths is None:
        return wide
    real = (torch.arange(rows.length, device=lengths.device) < lengths[:, None])[..., None]
    return DeltaRows(
        torch.where(real[..., None], wide.queries, 0),
        torch.where(real[..., None], wide.keys, 0),
        torch.where(real[..., None], wide.values, 0),
        torch.where(real, wide.decay, 1),
        torch.where(real, wide.beta, 0),
    )
