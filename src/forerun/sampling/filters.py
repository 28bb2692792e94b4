"""Scores to a distribution: top-k, temperature, top-p, min-p, in this order (ORD-1)."""

import torch
from torch import Tensor

from forerun.sampling import host_row
from forerun.sampling.distribution import Distribution, accumulator, first_best, row_sum
from forerun.sampling.host_row import LEAST_SUM, MOST_COLUMNS, NO_TOKEN
from forerun.sampling.options import SamplingOptions

_BLOCK = 128  # neighbours that their maximum stands for in a first look
_SUM_ERROR = 1e-5  # of a normalised fp32 row, on the safe side


def filtered(scores: Tensor, options: SamplingOptions, ids: Tensor | None = None) -> Distribution:
    """What may be drawn from `scores` [rows, columns] fp32 under one set of options.

    ids   [columns] int64, the token each column stands for; None: column = id (DST-11)

    A row without a finite score comes out with probability 0 everywhere.
    """
    if options.greedy:
        return _point_mass(scores, ids)
    if not 0 < options.top_k < scores.shape[-1]:
        probs = _cut(scores, options)
        return Distribution(probs, None if ids is None else ids.expand_as(probs))
    scores, columns = top_k(scores, options.top_k)
    if scores.device.type == "cpu" and options.top_k <= MOST_COLUMNS:
        rows = [host_row.cut(row, options) for row in scores.tolist()]
        probs = torch.tensor(rows, dtype=torch.float32).view(scores.shape)
    else:
        probs = _cut(scores, options)
    return Distribution(probs, columns if ids is None else ids[columns])


def _cut(scores: Tensor, options: SamplingOptions) -> Tensor:
    """Probabilities after everything behind top-k, in the columns of `scores`."""
    probs = softmax(scores, options.temperature)
    if options.top_p < 1:
        probs = top_p(probs, options.top_p)
    if options.min_p > 0:
        probs = min_p(probs, options.min_p)
    return normalise(probs)


def top_k(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and their columns, [rows, count] each.

    Of equal scores, which are common in half precision, those in smaller columns stay. A CPU
    finds the few that reach a bound and sorts those, in less time than `topk` takes; its rows
    descend, of equal scores the smaller column first.
    """
    if scores.device.type == "cpu":
        columns = _contenders(scores, count)
        if columns.shape[0] >= count:  # else so much is blocked that ties do not matter
            values, order = scores[:, columns].sort(dim=-1, descending=True, stable=True)
            return values[:, :count], columns[order[:, :count]]
    values, columns = scores.topk(count)
    columns, order = columns.sort(dim=-1)
    values = values.gather(-1, order)
    if scores.device.type != "cpu":
        return values, columns
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return values, columns.gather(-1, order)


def _contenders(scores: Tensor, count: int) -> Tensor:
    """The columns, ascending, of all finite scores that may be among the `count` largest."""
    width = scores.shape[-1]
    blocks = width // _BLOCK
    if blocks < count:
        return _reaching(scores, _finite_bound(scores, count))
    maxima = scores[:, : blocks * _BLOCK].reshape(-1, blocks, _BLOCK).amax(-1)
    least = _finite_bound(maxima, count)
    within = torch.arange(_BLOCK)
    columns = (_reaching(maxima, least)[:, None] * _BLOCK + within).flatten()
    columns = torch.cat([columns, torch.arange(blocks * _BLOCK, width)])
    return columns[_reaching(scores[:, columns], least)]


def _finite_bound(values: Tensor, count: int) -> Tensor:
    """Reached by the `count` largest of each row, and by nothing that is blocked; [rows, 1]."""
    return values.topk(count).values[:, -1:].clamp_min(torch.finfo(values.dtype).min)


def _reaching(values: Tensor, least: Tensor | float) -> Tensor:
    """The columns where some row reaches its bound, ascending; waits for the device."""
    return (values >= least).any(0).nonzero().squeeze(-1)


def softmax(scores: Tensor, temperature: float) -> Tensor:
    """Of `scores` / temperature in fp32; the maximum goes first, or a small divisor overflows."""
    top = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).min)
    return normalise(scores.sub(top).div_(temperature).exp_())


def normalise(weights: Tensor) -> Tensor:
    return weights / row_sum(weights).clamp_min_(LEAST_SUM)


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
    return _reaching(probs, least)


def min_p(probs: Tensor, share: float) -> Tensor:
    """Entries below `share` of their row's largest become 0."""
    return probs.masked_fill(probs < share * probs.amax(-1, keepdim=True), 0)


def _point_mass(scores: Tensor, ids: Tensor | None) -> Distribution:
    token = first_best(scores, ids)[:, None]
    return Distribution((token != NO_TOKEN).to(torch.float32), token.clamp_min(0))
