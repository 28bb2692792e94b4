"""The gated delta rule for prefill: chunks of steps solved at once, the state carried between them.

Within a chunk let G_t be the product of the decays up to t and D_ti = G_t / G_i. Unrolling the
steps from the chunk's first state S gives

    S_t = G_t S + sum_{i <= t} D_ti u_i k_i^T
    u_t = beta_t (v_t - G_t S k_t - sum_{i < t} D_ti (k_i . k_t) u_i)

so the corrections u are the solution of a unit lower triangular system

    (1 + A) U = beta V - (beta G K) S^T,   A_ti = beta_t D_ti (k_t . k_i) for i < t

whose two right-hand sides know nothing of S: they are solved for all chunks together, and what
remains in sequence is a few products a chunk.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.gated_delta.reference import DeltaRows, DeltaScan, stepwise, widened

WIDEST_STEPPED = 16  # the widest verification, whose bits may depend on no width (KER-2, WID-4)
_SMALLEST_DECAY = torch.finfo(torch.float32).tiny  # a decay of 0 has no logarithm


def gated_delta(
    rows: DeltaRows,
    state: Tensor,
    *,
    boundaries: Sequence[int] = (),
    lengths: Tensor | None = None,
    chunk: int = 64,
) -> DeltaScan:
    """`stepwise`, within the rounding of float32 where there are more than 16 steps.

    Boundaries cut a wider scan into segments, each of which goes on from the state of the one
    before it (CNV-6).
    """
    if rows.length <= WIDEST_STEPPED:
        return stepwise(rows, state, boundaries=boundaries, lengths=lengths)
    wide = widened(rows, lengths)
    edges = [0, *boundaries, rows.length]
    outputs, states = [], []
    for start, end in pairwise(edges):
        segment = _part(wide, start, end)
        made, state = _chunks(segment, state, chunk)
        outputs.append(made)
        states.append(state)
    return DeltaScan(torch.cat(outputs, dim=1).to(rows.values.dtype), tuple(states))


def _part(rows: DeltaRows, start: int, end: int) -> DeltaRows:
    return DeltaRows(
        rows.queries[:, start:end],
        rows.keys[:, start:end],
        rows.values[:, start:end],
        rows.decay[:, start:end],
        rows.beta[:, start:end],
    )


def _chunks(rows: DeltaRows, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    length = rows.length
    queries, keys, values = (
        _chunked(part, chunk) for part in (rows.queries, rows.keys, rows.values)
    )
    beta = _chunked(rows.beta[..., None], chunk)
    logs = rows.decay.clamp(min=_SMALLEST_DECAY).log()[..., None]
    kept = _chunked(logs, chunk).cumsum(-2)  # logarithm of G
    below = torch.ones(chunk, chunk, dtype=torch.bool, device=state.device).tril()
    # masked before the exponential, which would overflow above the diagonal
    ratios = (kept - kept.mT).masked_fill(~below, float("-inf")).exp()
    system = (beta * ratios * (keys @ keys.mT)).tril(-1)
    sides = torch.cat((beta * values, beta * kept.exp() * keys), dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    free, bound = solved.split((values.shape[-1], keys.shape[-1]), dim=-1)
    read, seen = kept.exp() * queries, ratios * (queries @ keys.mT)
    last = kept[..., -1:, :]
    written, passed = (last - kept).exp() * keys, last.exp()
    outputs = []
    for step in range(keys.shape[2]):
        corrections = free[:, :, step] - bound[:, :, step] @ state.mT
        outputs.append(read[:, :, step] @ state.mT + seen[:, :, step] @ corrections)
        state = passed[:, :, step] * state + corrections.mT @ written[:, :, step]
    made = torch.cat(outputs, dim=2)[:, :, :length]
    return made.transpose(1, 2), state


def _chunked(rows: Tensor, chunk: int) -> Tensor:
    """[B, L, H, D] as [B, H, chunks, chunk, D], filled up with steps without effect.

    Zeros have none: beta, keys and values of 0 add nothing, a logarithm of 0 keeps all.
    """
    missing = -rows.shape[1] % chunk
    padded = functional.pad(rows, (0, 0, 0, 0, 0, missing)) if missing else rows
    batch, length, heads, dim = padded.shape
    return padded.transpose(1, 2).reshape(batch, heads, length // chunk, chunk, dim)
