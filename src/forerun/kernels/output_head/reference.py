"""The output head in plain torch: all logits, and the best of them."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import Quantised


def logits(x: Tensor, weight: Quantised) -> Tensor:
    """[..., in] to [..., out] in float32, of `x` in any float dtype."""
    return functional.linear(x.float(), dequantise(weight, torch.float32))


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row [rows, out], and their int64 ids [rows, count].

    From the largest down, of equal ones the smaller id first (04 ORD-6). NaN is nobody's value:
    where fewer are numbers, ids are -1 and values -inf.
    """
    short = max(0, count - scores.shape[-1])
    scores = functional.pad(scores, (0, short), value=math.nan)
    # sorted for themselves: as -inf among the others, NaN might come before a number that is -inf
    ids = scores.isnan().to(torch.uint8).sort(dim=-1, stable=True).indices
    values = scores.nan_to_num(-math.inf, math.inf, -math.inf).gather(-1, ids)
    values, order = values.sort(dim=-1, stable=True, descending=True)
    ids = ids.gather(-1, order)[:, :count]
    return values[:, :count].contiguous(), ids.masked_fill(scores.gather(-1, ids).isnan(), -1)
