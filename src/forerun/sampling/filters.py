"""Scores to a distribution: top-k, temperature, top-p, min-p, in this order (ORD-1)."""

import torch
from torch import Tensor

from forerun.sampling.distribution import (
    NO_TOKEN,
    Distribution,
    accumulator,
    first_best,
    row_sum,
)
from forerun.sampling.options import SamplingOptions

_LEAST_SUM = 1e-20  # ORD-5
_SUM_ERROR = 1e-5  # of a normalised fp32 row, on the safe side


def filtered(scores: Tensor, options: SamplingOptions, ids: Tensor | None = None) -> Distribution:
    """What may be drawn from `scores` [rows, columns] fp32 under one set of options.

    ids   [columns] int64, the token each column stands for; None: column = id (DST-11)

    A row without a finite score comes out with probability 0 everywhere.
    """
    if options.greedy:
        return _point_mass(scores, ids)
    columns = None
    if 0 < options.top_k < scores.shape[-1]:  # topk raises past the width
        scores, columns = scores.topk(options.top_k)
    probs = softmax(scores, options.temperature)
    if options.top_p < 1:
        probs = top_p(probs, options.top_p)
    if options.min_p > 0:
        probs = min_p(probs, options.min_p)
    probs = normalise(probs)
    if ids is None:
        return Distribution(probs, columns)
    return Distribution(probs, ids.expand_as(probs) if columns is None else ids[columns])


def softmax(scores: Tensor, temperature: float) -> Tensor:
    """Of `scores` / temperature in fp32; the maximum goes first, or a small divisor overflows."""
    top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    return normalise(scores.sub(top).div_(temperature).exp_())


def normalise(weights: Tensor) -> Tensor:
    return weights / row_sum(weights).clamp_min_(_LEAST_SUM)


def top_p(probs: Tensor, limit: float) -> Tensor:
    """Keep entries that less than `limit` precedes in descending order, and always the first.

    The others become 0; what stays is not normalised again.
    """
    columns = _candidates(probs, limit)
    chosen = probs if columns is None else probs[:, columns]
    ordered, order = chosen.sort(dim=-1, descending=True, stable=True)
    preceding = ordered.cumsum(-1, dtype=accumulator(probs)).sub_(ordered)
    keep = preceding < limit
    keep[:, :1] = True
    kept = torch.zeros_like(chosen).scatter_(-1, order, ordered * keep)
    if columns is None:
        return kept
    return torch.zeros_like(probs).index_copy_(-1, columns, kept)


def _candidates(probs: Tensor, limit: float) -> Tensor | None:
    """Columns that top-p can keep in some row, ascending; None: look at all of them.

    All entries below (1 - limit) / columns together hold less than 1 - limit, so `limit` precedes
    each of them. A CPU takes 20 ms to sort a vocabulary, and 0.1 ms to sort what passes; elsewhere
    their number would have to cross to the host.
    """
    width = probs.shape[-1]
    least = (1 - limit - _SUM_ERROR) / width
    if probs.device.type != "cpu" or width < 1024 or least <= 0:
        return None
    return (probs.amax(0) >= least).nonzero().squeeze(-1)


def min_p(probs: Tensor, share: float) -> Tensor:
    """Entries below `share` of their row's largest become 0."""
    return probs.masked_fill(probs < share * probs.amax(-1, keepdim=True), 0)


def _point_mass(scores: Tensor, ids: Tensor | None) -> Distribution:
    token = first_best(scores, ids)[:, None]
    return Distribution((token != NO_TOKEN).to(torch.float32), token.clamp_min(0))
