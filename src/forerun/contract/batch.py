"""One forward's input: the only argument of a model that grows (spec 01 MSK-10, 06 CON-8)."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.contract.history import Write
from forerun.contract.media import Layout, MediaItem
from forerun.contract.recurrence import RecurrentWrite


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows of tokens, each from its own position of its own sequence.

    Host integers and device tensors say the same thing twice: Python code branches on the former,
    a captured graph reads the latter, and neither ever waits for the other.

    Laws
    1. `starts[r] + i` is the position of `input_ids[r, i]` for i < `lengths[r]`; later columns are
       padding: they see one live key at most and nobody reads their output.
    2. A row's result does not depend on the other rows, nor on padding.
    3. `writes` given: whoever built the batch has begun them, one entry a layer (None for a layer
       without state), and ends them after the forward; layers only store rows and states.
       This is how a captured graph runs: begin on the host, replay, end on the host (01 WRT-6).
    4. `memo` lives as long as the batch. A key holds everything its value was computed from.
    """

    input_ids: Tensor  # [B, L] int64; L may be 0 for a draft that only takes in conditioning
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    start_offsets: Tensor  # [B] int64 on the device
    valid_lengths: Tensor  # [B] int64 on the device
    conditioning: Tensor | None = None  # [B, C, H]: what a draft is fed; C = L for chains
    conditioning_starts: tuple[int, ...] | None = (
        None  # positions of the first row, if not `starts`
    )
    media: Sequence[MediaItem] = ()
    layout: Layout | None = None
    writes: Sequence[Write | RecurrentWrite | None] | None = None
    memo: dict[Hashable, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokens: Sequence[int] | Tensor,
        start: int,
        device: torch.device,
        *,
        conditioning: Tensor | None = None,
        media: Sequence[MediaItem] = (),
        layout: Layout | None = None,
    ) -> "Batch":
        """One full row of `tokens` from position `start`.

        A tensor of tokens, [n] int64, is on `device` already; then nothing here waits for it.
        """
        if not isinstance(tokens, Tensor):
            tokens = torch.tensor(list(tokens), dtype=torch.int64, device=device)
        width = tokens.shape[0]
        return cls(
            input_ids=tokens[None],
            starts=(start,),
            lengths=(width,),
            # filled on the device: a copy from the host would wait for the queue to empty
            start_offsets=torch.full((1,), start, dtype=torch.int64, device=device),
            valid_lengths=torch.full((1,), width, dtype=torch.int64, device=device),
            conditioning=conditioning,
            media=media,
            layout=layout,
        )

    @property
    def rows(self) -> int:
        return self.input_ids.shape[0]

    @property
    def width(self) -> int:
        return self.input_ids.shape[1]

    @property
    def full(self) -> bool:
        """No row is padded."""
        return all(length == self.width for length in self.lengths)

    def positions(self) -> Tensor:
        """[B, L] int64, position of each column (a layout, where there is one, overrides it)."""
        columns = torch.arange(self.width, dtype=torch.int64, device=self.input_ids.device)
        return self.start_offsets[:, None] + columns
