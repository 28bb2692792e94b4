"""An attention layer among those that run in one call: its cache's rows around the kernel."""

from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache, LayerCache
from forerun.contract.history import Write
from forerun.kernels.select import AttentionLayer
from forerun.nn.fused_layer import AnyWrite, RunRow
from forerun.nn.layer_weights import AttentionWeights


class FusedAttention:
    """One layer; see `FusedLayer`."""

    def __init__(
        self, kernel: AttentionLayer, weights: AttentionWeights, dtype: torch.dtype
    ) -> None:
        """dtype: of keys and values"""
        self._heads, self._kernel, self._dtype = weights.heads, kernel, dtype

    @property
    def nbytes(self) -> int:
        return self._kernel.nbytes

    def begin(self, cache: LayerCache | None, batch: Batch) -> Write:
        return _rows(cache).begin_write(batch.width)

    def end(self, cache: LayerCache | None, write: AnyWrite, tokens: int) -> None:  # noqa: ARG002
        _rows(cache).end_write(tokens)

    def place(self, batch: Batch, write: AnyWrite) -> bool:
        begun = _begun(write)
        history = begun.history
        if not (begun.index is history.lengths is history.positions is None):
            return False
        self._kernel.place(
            begun.keys,
            begun.values,
            first_row=begun.first_index,
            live=history.live - (batch.width - batch.lengths[0]),
            first_position=history.oldest,
        )
        return True

    def within_batch(self, batch: Batch, run: RunRow) -> None:
        keys, values = self._empty(batch.width)
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            if length:
                self._kernel.place(keys, values, first_row=0, live=length, first_position=start)
                run(row, length)

    def written(self, batch: Batch, write: AnyWrite, run: RunRow) -> None:
        """What each row sees is copied together, and its new rows are stored where they belong."""
        begun = _begun(write)
        history, width = begun.history, batch.width
        assert history.positions is None, "rows of this history are not in the order of positions"
        lives = [history.live - (width - length) for length in batch.lengths]
        if history.lengths is not None:
            lives = history.lengths.tolist()
        parts = []
        for row, (live, length) in enumerate(zip(lives, batch.lengths, strict=True)):
            old = live - length
            keys, values = self._empty(old + width)
            keys[:, :old] = history.keys[row, :, :old]
            values[:, :old] = history.values[row, :, :old]
            if length:
                first = history.oldest
                self._kernel.place(keys, values, first_row=old, live=live, first_position=first)
                run(row, length)
            parts.append((keys[:, old:], values[:, old:]))
        new_keys, new_values = (torch.stack(rows) for rows in zip(*parts, strict=True))
        begun.store(new_keys, new_values)

    def _empty(self, count: int) -> tuple[Tensor, Tensor]:
        shape = (self._heads.kv, count, self._heads.dim)
        # zeros: rows of padding are stored too, and shall hold numbers
        return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)


def _rows(cache: LayerCache | None) -> AttentionCache:
    return cast(AttentionCache, cache)  # as in `nn.attention`, checked by no protocol


def _begun(write: AnyWrite) -> Write:
    assert isinstance(write, Write), "nobody has begun a write for this layer"
    return write
