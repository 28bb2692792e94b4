"""How query heads come to share key heads: three ways through one fused kernel.

queries [B, heads, L, Dk], keys [B, kv_heads, K, Dk], values [B, kv_heads, K, Dv]; the result is
[B, heads, L, Dv]. Which way is fastest, and which builds scores, depends on device and dtype.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """How a forward attends. Neither field set: every query sees every column."""

    causal: bool = False  # the kernel's own flag, which aligns the first query with column 0
    bias: Tensor | None = None  # [B or 1, 1, L, K], 0 where visible and -inf elsewhere


def grouped(queries: Tensor, keys: Tensor, values: Tensor, plan: Plan, *, scale: float) -> Tensor:
    """The kernel shares key heads itself. On CUDA that exists for 16-bit types alone: the same
    call in float32 builds all scores.
    """
    return F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=plan.bias,
        is_causal=plan.causal,
        scale=scale,
        enable_gqa=queries.shape[1] > keys.shape[1],
    )


def folded(queries: Tensor, keys: Tensor, values: Tensor, plan: Plan, *, scale: float) -> Tensor:
    """The query heads of a key head are rows of one head, so that a CPU reads each key once: one
    bf16 query is 8 times as fast as in `grouped`.

    The plan is never causal, and has a row for each query of each of these heads: see `tiled`.
    """
    assert not plan.causal, "a kernel's own flag knows one query a row"
    batch, heads, width, dim = queries.shape
    rows = queries.reshape(batch, keys.shape[1], -1, dim)
    single = rows.shape[2] == 1 and rows.dtype != torch.float32
    if single:  # two rows take the matrix path, in less than half the time of one
        rows = rows.repeat(1, 1, 2, 1)
    attended = F.scaled_dot_product_attention(rows, keys, values, attn_mask=plan.bias, scale=scale)
    if single:
        attended = attended[:, :, :1]
    return attended.reshape(batch, heads, width, -1)


def tiled(plan: Plan, groups: int) -> Plan:
    """The plan of folded queries: the same mask for every query head of a key head."""
    if plan.bias is None or groups == 1 or plan.bias.shape[2] == 1:
        return plan
    return Plan(bias=plan.bias.repeat(1, 1, groups, 1))


def apart(queries: Tensor, keys: Tensor, values: Tensor, plan: Plan, *, scale: float) -> Tensor:
    """Each key head is a sequence of its own, whose keys all its queries read through a view."""
    batch, heads, width, dim = queries.shape
    groups = heads // keys.shape[1]
    bias = plan.bias
    if bias is not None and batch > 1:
        bias = bias.expand(batch, -1, -1, -1).repeat_interleave(keys.shape[1], 0)
    attended = F.scaled_dot_product_attention(
        queries.reshape(-1, groups, width, dim),
        keys.flatten(0, 1)[:, None].expand(-1, groups, -1, -1),
        values.flatten(0, 1)[:, None].expand(-1, groups, -1, -1),
        attn_mask=bias,
        is_causal=plan.causal,
        scale=scale,
    )
    return attended.reshape(batch, heads, width, -1)
