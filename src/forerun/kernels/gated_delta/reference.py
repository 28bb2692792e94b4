"""The gated delta rule, step by step. Yang et al. 2024, https://arxiv.org/abs/2412.06464, eq. 10.

S = decay * S
u = beta * (v - S k)
S = S + u k^T
y = S q
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
