"""Cosines and sines of plain positions as the native layers read them, kept between forwards."""

from collections.abc import Callable

import torch
from torch import Tensor

Addresses = tuple[int, int]  # of cosines and sines
Halves = tuple[Tensor, Tensor]  # cosines and sines [.., d / 2], which the other halves repeat

POSITIONS = 32_768  # kept at most: memory becomes resident as it is filled
AT_ONCE = 512


class RopeRows:
    """Rows of positions 0 and up. They never move, so that a step only needs to know where."""

    def __init__(self, half: int, compute: Callable[[Tensor], Halves]) -> None:
        """
        half     columns of a row
        compute  rows of the positions [1, n] int64, float32
        """
        self._half, self._compute = half, compute
        self._tables: Halves | None = None
        self._filled = 0
        self._starts: Addresses = (0, 0)

    def addresses(self, start: int, count: int) -> Addresses | None:
        """Of `count` rows from position `start`; None: those are not kept."""
        end = start + count
        if end > self._filled:
            if end > POSITIONS:
                return None
            self._fill(end)
        cosines, sines = self._starts
        before = start * self._half * torch.float32.itemsize
        return cosines + before, sines + before

    @torch.inference_mode()  # whatever mode the next rows are written in
    def _fill(self, end: int) -> None:
        if self._tables is None:
            empty = torch.empty(2, POSITIONS, self._half)
            self._tables = empty[0], empty[1]
            self._starts = empty[0].data_ptr(), empty[1].data_ptr()
        end = -(-end // AT_ONCE) * AT_ONCE
        positions = torch.arange(self._filled, end)[None]
        for table, rows in zip(self._tables, self._compute(positions), strict=True):
            table[self._filled : end] = rows[0]
        self._filled = end
