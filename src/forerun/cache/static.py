"""Keys and values of many sequences at once, in buffers that never grow or move.

Each row of the batch is a sequence of its own, at its own offset. For work that nobody waits for,
such as writing what a draft head is trained on: there are no snapshots, and a row that is given to
another sequence is rewound to position 0. A row holds what a cache of one sequence would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from forerun.base.errors import UnsupportedError
from forerun.cache.kv import KVCache
from forerun.cache.rows import Rows, RowShape
from forerun.contract.batch import Batch
from forerun.contract.history import History, Write
from forerun.contract.model import Caches

BUCKET = 64


@dataclass(frozen=True, slots=True)
class _Layer:
    """Stands in the list of caches. A forward whose writes have begun asks nothing of it."""

    rows: Rows


class StaticBatch:
    """The layers' buffers, and the offset of every row.

    Laws
    1. `step` then a forward over its batch writes each row's token at that row's offset and
       attends over the row's own tokens alone, up to and including it.
    2. Buffers, index, offsets and lengths keep their addresses for life, so that a captured graph
       may read them.
    """

    def __init__(
        self, shapes: Sequence[RowShape], rows: int, capacity: int, *, bucket: int = BUCKET
    ) -> None:
        """
        shapes    of each layer's rows, on one device; every layer sees the whole past
        rows      sequences
        capacity  tokens a sequence can hold
        bucket    columns by which the part of the buffers that is read grows
        """
        self.rows, self.capacity, self._bucket = rows, capacity, bucket
        self._layers = [_Layer(_zeros(replace(shape, batch=rows), capacity)) for shape in shapes]
        self._offsets = [0] * self.rows  # of the host; the device has `_starts`
        device = shapes[0].device
        self._starts = torch.zeros(self.rows, dtype=torch.int64, device=device)
        self._lengths = torch.ones(self.rows, dtype=torch.int64, device=device)
        self._one = torch.ones(self.rows, dtype=torch.int64, device=device)

    @classmethod
    def beside(
        cls, caches: Caches, rows: int, capacity: int, *, bucket: int = BUCKET
    ) -> "StaticBatch":
        """Buffers for the layers that `caches` are of, which stay as they are.

        UnsupportedError where a layer is not one of full attention.
        """
        shapes = []
        for index, cache in enumerate(caches):
            if not isinstance(cache, KVCache):
                raise UnsupportedError(
                    f"layer {index} of the model has a sliding window or a running state; many "
                    "sequences at once need full attention at every layer"
                )
            shapes.append(cache.shape)
        return cls(shapes, rows, capacity, bucket=bucket)

    @property
    def caches(self) -> Caches:
        """What a forward is given beside the batch: that there is a cache at every layer."""
        return cast(Caches, self._layers)

    @property
    def offsets(self) -> Sequence[int]:
        """Tokens that each row holds."""
        return self._offsets

    @property
    def starts(self) -> Tensor:
        """The same on the device, [rows] int64: it changes in place."""
        return self._starts

    def rewind(self, rows: Sequence[int], offsets: Sequence[int]) -> None:
        """Keep the first tokens of `rows` alone, as many as `offsets` say: 0 starts them again."""
        if not rows:
            return
        for row, offset in zip(rows, offsets, strict=True):
            assert 0 <= offset <= self._offsets[row], (row, offset, self._offsets[row])
            self._offsets[row] = offset
        device = self._starts.device
        index = torch.tensor(list(rows), device=device)
        self._starts[index] = torch.tensor(list(offsets), dtype=torch.int64, device=device)
        torch.add(self._starts, 1, out=self._lengths)

    def step(self, tokens: Tensor) -> Batch:
        """A batch that writes one token a row; `advance` after its forward.

        tokens  [rows] int64 on the device. A row that is full overwrites its last token.
        """
        last = max(self._offsets)
        live = min(-(-(last + 1) // self._bucket) * self._bucket, self.capacity)
        index = self._starts[:, None]
        writes = [
            Write(
                layer.rows.keys,
                layer.rows.values,
                first_index=last,
                history=History(
                    layer.rows.keys, layer.rows.values, live=live, lengths=self._lengths
                ),
                index=index,
            )
            for layer in self._layers
        ]
        return Batch(
            input_ids=tokens[:, None],
            starts=tuple(self._offsets),
            lengths=(1,) * self.rows,
            start_offsets=self._starts,
            valid_lengths=self._one,
            writes=writes,
        )

    def advance(self) -> None:
        """Count the tokens that the last batch has written."""
        end = self.capacity - 1
        self._offsets = [min(offset + 1, end) for offset in self._offsets]
        self._starts.add_(1).clamp_(max=end)
        torch.add(self._starts, 1, out=self._lengths)


def _zeros(shape: RowShape, capacity: int) -> Rows:
    """Numbers everywhere: columns that a row has not reached are masked, but NaN shows through."""
    rows = shape.empty(capacity)
    rows.keys.zero_()
    rows.values.zero_()
    return rows
