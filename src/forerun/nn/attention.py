"""Scaled dot-product attention over a cache or a batch: under which mask, by which kernel.

Spec 01 MSK. The mask of a forward is worked out once and shared by sibling layers (MSK-7).
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache, LayerCache
from forerun.contract.history import History, Write
from forerun.contract.mask import CAUSAL, Mask, intersect, visible
from forerun.nn.shared_heads import Plan, apart, folded, grouped, tiled

_FOLDED_WIDTH = 16  # wider than this, folding gains nothing on a CPU


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention. It has no weights and keeps nothing."""

    layer: int  # index of the layer in `Batch.writes`
    scale: float
    window: int | None = None  # for forwards without a cache: with one, the cache applies it

    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: Batch,
        *,
        cache: LayerCache | None,
        mask: Mask = CAUSAL,
    ) -> Tensor:
        """Write the new rows and attend over everything before and among them.

        queries  [B, heads, L, Dk], rope applied
        keys     [B, kv_heads, L, Dk]; `values` the same with Dv
        cache    an `AttentionCache`; None: attend within the batch (CON-9)
        mask     without the window, which whoever holds the rows applies (CON-12)
        returns  [B, heads, L, Dv]
        """
        assert keys.shape[2] == batch.width, (keys.shape, batch.width)
        if cache is None:
            return self._within_batch(queries, keys, values, batch, mask=mask)
        if batch.writes is not None:
            write = batch.writes[self.layer]
            assert isinstance(write, Write), f"nobody has begun a write for layer {self.layer}"
            write.store(keys, values)
            return attend(queries, write.history, batch, mask=mask, scale=self.scale)
        # to check against the protocol takes longer than to write (29 us against 16 on a CPU)
        rows = cast(AttentionCache, cache)
        assert len(set(batch.lengths)) == 1, f"rows of one cache advance in step: {batch.lengths}"
        write = rows.begin_write(batch.width)
        written = 0  # unless all goes well
        try:
            write.store(keys, values)
            attended = attend(queries, write.history, batch, mask=mask, scale=self.scale)
            written = batch.lengths[0]
        finally:
            rows.end_write(written)
        return attended

    def _within_batch(
        self, queries: Tensor, keys: Tensor, values: Tensor, batch: Batch, *, mask: Mask
    ) -> Tensor:
        together = len(set(batch.starts)) == 1
        history = History(
            keys,
            values,
            live=batch.width,
            oldest=batch.starts[0] if together else 0,
            positions=None if together else batch.positions(),
            lengths=None if batch.full else batch.valid_lengths,
        )
        if self.window is not None and batch.width > self.window:
            mask = intersect(mask, _window_mask(batch, self.window))
        return attend(queries, history, batch, mask=mask, scale=self.scale)


def attend(
    queries: Tensor,
    history: History,
    batch: Batch,
    *,
    mask: Mask = CAUSAL,
    scale: float,
    value_dim: int | None = None,
) -> Tensor:
    """Attention of `queries` [B, heads, L, Dk] over the live columns of a history.

    value_dim  width of a value where the history has none: then they are the first features of
               its keys (absorbed latent attention, MSK-8)
    returns    [B, heads, L, Dv]
    """
    keys = history.keys[:, :, : history.live]
    values = keys if value_dim is not None else history.values[:, :, : history.live]
    plan = resolve(history, batch, mask, queries.dtype)
    on_cpu = queries.device.type == "cpu"
    # of many sequences at once, on CUDA too: no fused kernel there knows both masks and key heads
    if (on_cpu or batch.rows > 1) and not plan.causal and batch.width <= _FOLDED_WIDTH:
        plan = _tiled_once(plan, queries.shape[1] // keys.shape[1], batch)
        attended = folded(queries, keys, values, plan, scale=scale)
    elif on_cpu or queries.dtype != torch.float32:
        attended = grouped(queries, keys, values, plan, scale=scale)
    else:
        attended = apart(queries, keys, values, plan, scale=scale)
    return attended if value_dim is None else attended[..., :value_dim]


def resolve(history: History, batch: Batch, mask: Mask, dtype: torch.dtype) -> Plan:
    """The composed mask of a forward, from `batch.memo` where a sibling layer has made it.

    Public for attention written out by hand, which reads keys and values from the history too.
    """
    key: Hashable = (
        "attention",
        mask.key,
        None if history.applier is None else history.applier.key,
        (history.live, history.oldest),
        (id(history.positions), id(history.lengths)),
        dtype,
    )
    found = batch.memo.get(key)
    if found is None:
        # what the key knows by id is kept alive with the plan, so that no id comes back
        kept = (mask.tensor, history.positions, history.lengths)
        found = batch.memo[key] = (_plan(history, batch, mask, dtype), kept)
    plan, _ = cast(tuple[Plan, object], found)
    return plan


def _plan(history: History, batch: Batch, mask: Mask, dtype: torch.dtype) -> Plan:
    applier, width = history.applier, batch.width
    applies = applier is not None and (applier.needed(width) or (width > 1 and not mask.causal))
    plain = batch.full and history.lengths is None and mask.tensor is None and not applies
    if plain and (not mask.causal or (width == 1 and _all_past(history, batch))):
        return Plan()
    if plain and not mask.rects and _square(history, batch):
        return Plan(causal=True)
    positions, columns = batch.positions(), _columns(history, batch)
    seen = visible(mask, positions, columns)
    if applies and applier is not None:
        seen = applier.apply(mask, seen, positions)
    return Plan(bias=_bias(_without_padding(seen, history, batch), dtype))


def _all_past(history: History, batch: Batch) -> bool:
    """Whether no column is later than any row's first query."""
    if history.positions is not None:
        return history.applier is not None  # which has said that nothing needs hiding
    return history.oldest + history.live - 1 <= min(batch.starts)


def _square(history: History, batch: Batch) -> bool:
    """Whether column i holds the row of query i, which is what a kernel's causal flag means."""
    starts_there = history.positions is None and set(batch.starts) == {history.oldest}
    return starts_there and history.live == batch.width


def _columns(history: History, batch: Batch) -> Tensor:
    """[B or 1, live] position of each live column."""
    if history.positions is not None:
        return history.positions[:, : history.live]
    end = history.oldest + history.live
    device = batch.start_offsets.device
    return torch.arange(history.oldest, end, dtype=torch.int64, device=device)[None]


def _without_padding(seen: Tensor, history: History, batch: Batch) -> Tensor:
    """Hide columns that a row has not filled; show padded queries one live column (MSK-9)."""
    column = torch.arange(seen.shape[-1], device=seen.device)
    if history.lengths is not None:
        seen = seen & (column < history.lengths[:, None, None, None])
    if not batch.full:
        query = torch.arange(batch.width, device=seen.device)
        padded = (query >= batch.valid_lengths[:, None])[:, None, :, None]
        seen = torch.where(padded, column == 0, seen)
    return seen


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What a kernel adds to the scores. Rows are spaced so that each is aligned on CUDA, where that
    is 1.5 times as fast.
    """
    columns = seen.shape[-1]
    spaced = torch.zeros(*seen.shape[:-1], -(-columns // 8) * 8, dtype=dtype, device=seen.device)
    return spaced[..., :columns].masked_fill_(~seen, float("-inf"))


def _window_mask(batch: Batch, window: int) -> Mask:
    """The last `window` positions, in logical columns; one a batch and window."""
    key: Hashable = ("window", window)
    found = batch.memo.get(key)
    if found is None:
        positions = batch.positions()
        end = max(batch.starts) + batch.width
        column = torch.arange(end, dtype=torch.int64, device=positions.device)
        found = batch.memo[key] = Mask(tensor=column > positions[:, None, :, None] - window)
    return cast(Mask, found)


def _tiled_once(plan: Plan, groups: int, batch: Batch) -> Plan:
    if plan.bias is None:
        return plan
    key: Hashable = ("tiled", id(plan.bias), groups)  # `plan` lives in the memo too
    found = batch.memo.get(key)
    if found is None:
        found = batch.memo[key] = tiled(plan, groups)
    return cast(Plan, found)
