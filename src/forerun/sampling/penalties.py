"""Repeat, presence and frequency penalties on the tokens of a window (PEN)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from forerun.sampling.options import SamplingOptions
from forerun.sampling.penalty_history import Window


def penalise(
    scores: Tensor, window: Window, options: SamplingOptions, column_of: Tensor | None = None
) -> Tensor:
    """New scores; `scores` [rows, columns] fp32 stays as it is.

    column_of   [vocabulary] int64, each token's column, the number of columns where it has none;
                None: a token's id is its column
    """
    spare = scores.shape[-1]  # a column behind the last, which takes what must have no effect
    places = window.ids if column_of is None else column_of[window.ids]
    if window.live is not None:
        places = places.masked_fill(~window.live, spare)
    changed = pad(scores, (0, 1))
    # A token that occurs twice is read twice and written twice, with one value.
    seen = changed.gather(-1, places)
    factor = options.repeat_penalty
    lowered = torch.where(seen < 0, seen * factor, seen * (1 / factor)) - options.presence_penalty
    if options.frequency_penalty:
        ones = lowered.new_ones(()).expand_as(lowered)
        counts = torch.zeros_like(changed).scatter_add_(-1, places, ones).gather(-1, places)
        lowered = lowered - options.frequency_penalty * counts
    return changed.scatter_(-1, places, lowered)[:, :spare]
