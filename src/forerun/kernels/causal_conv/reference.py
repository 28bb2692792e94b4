"""Depthwise causal convolution over the inputs before a forward and those of it (spec 01 CNV)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

WIDEST_EXACT = 16  # rows of one forward, up to which bits depend on no width (WID-1)


@dataclass(frozen=True, slots=True)
class ConvFilter:
    """A filter a channel; the last tap meets the newest row."""

    weight: Tensor  # [C, K]
    bias: Tensor | None = None  # [C]
    silu: bool = False  # activate the result (CNV-4)

    @property
    def tail(self) -> int:
        """Rows of the past that a result needs."""
        return self.weight.shape[1] - 1


@dataclass(frozen=True, slots=True)
class Convolved:
    """A forward's results, and what a forward from each of its boundaries starts with."""

    rows: Tensor  # [B, L, C] in the dtype of the inputs
    tails: tuple[Tensor, ...]  # [B, tail, C] raw inputs, one a boundary and the end's


def causal_conv(
    tail: Tensor,
    rows: Tensor,
    taps: ConvFilter,
    *,
    boundaries: Sequence[int] = (),
    lengths: Tensor | None = None,
) -> Convolved:
    """Convolve `rows` [B, L, C], before which came `tail` [B, K - 1, C] (zeros at the start).

    boundaries  counted from the first row, ascending, within the rows
    lengths     [B] real rows of each sequence; None: all. What lies in the others reaches nothing,
                and a sequence's tails stop at its own end (CNV-2, CNV-5)

    One pass whatever the boundaries are (CNV-1). Computed in float32, rounded once at the end. Taps
    are multiplied and added one after the other, so that a sum's bits depend on no width (WID-1).
    """
    length = rows.shape[1]
    if lengths is not None:
        real = torch.arange(length, device=rows.device) < lengths[:, None]
        rows = torch.where(real[..., None], rows, 0)
    inputs = torch.cat((tail.to(rows.dtype), rows), dim=1)
    ends = [_tail_at(inputs, at, taps.tail, lengths) for at in (*boundaries, length)]
    return Convolved(_filtered(inputs, length, taps).to(rows.dtype), tuple(ends))


def _filtered(inputs: Tensor, length: int, taps: ConvFilter) -> Tensor:
    wide, weight = inputs.float(), taps.weight.float()
    summed = wide[:, :length] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        summed += wide[:, tap : tap + length] * weight[:, tap]
    if taps.bias is not None:
        summed += taps.bias.float()
    return _activated(summed) if taps.silu else summed


def _activated(summed: Tensor) -> Tensor:
    """A few rows one by one on a CPU: at the end of a loop, or of a thread's share of it, where no
    full vector is left, an exponential has other last bits, and that end moves with the width.
    """
    if not summed.is_cpu or summed.shape[0] * summed.shape[1] > WIDEST_EXACT:
        return functional.silu(summed)
    for row in summed.flatten(0, 1).unbind():
        functional.silu(row, inplace=True)
    return summed


def _tail_at(inputs: Tensor, boundary: int, tail: int, lengths: Tensor | None) -> Tensor:
    """The raw rows before `boundary`, copied: a slice would keep all rows alive (CNV-3)."""
    if lengths is None:
        found = inputs[:, boundary : boundary + tail]
        return found.clone(memory_format=torch.contiguous_format)
    first = lengths.clamp(max=boundary)[:, None] + torch.arange(tail, device=inputs.device)
    return inputs.gather(1, first[..., None].expand(-1, -1, inputs.shape[2]))
