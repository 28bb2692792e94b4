"""The head that is trained: one layer of EAGLE-3's shape, parameters named as they are published.

Spec 03 EGL-4 to EGL-6, with `norm_before_fc`. Li et al. 2025, https://arxiv.org/abs/2503.01840.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The sizes of a head; those of the layer are the target's own."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    taps: int
    columns: int
    eps: float
    rope_theta: float


class Norm(nn.Module):
    """Root-mean-square norm, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class SelfAttention(nn.Module):
    """Projections of the first layer, whose input is [embedding, conditioning]."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden, inner, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, kv, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, kv, bias=False)
        self.o_proj = nn.Linear(inner, shape.hidden, bias=False)


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return product


class Layer(nn.Module):
    """The one decoder layer; what it attends over is the caller's affair."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.self_attn = SelfAttention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)

    def project(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, heads, L, D] of rows [B, L, hidden], not yet rotated."""
        joined = torch.cat((self.input_layernorm(embedded), self.hidden_norm(state)), -1)
        parts = self.self_attn
        return (
            self._apart(parts.q_proj(joined)),
            self._apart(parts.k_proj(joined)),
            self._apart(parts.v_proj(joined)),
        )

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        """The residual stream after the layer, from what came in and what was attended."""
        state = state + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        added: Tensor = self.mlp(self.post_attention_layernorm(state))
        return state + added

    def _apart(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], -1, self.shape.head_dim).transpose(1, 2)


class Head(nn.Module):
    """Everything that the checkpoint holds but the two maps of the vocabulary."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.taps * shape.hidden
        self.input_norm = Norm(width, shape.eps)
        self.fc = nn.Linear(width, shape.hidden, bias=False)
        self.layers = nn.ModuleList([Layer(shape)])
        self.norm = Norm(shape.hidden, shape.eps)
        self.lm_head = nn.Linear(shape.hidden, shape.columns, bias=False)

    @property
    def layer(self) -> Layer:
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        return layer

    def condition(self, taps: Tensor) -> Tensor:
        """[..., taps * hidden] of the target to [..., hidden]."""
        conditioning: Tensor = self.fc(self.input_norm(taps))
        return conditioning

    def unembed(self, state: Tensor) -> Tensor:
        """Logits [..., columns] of residual streams [..., hidden]."""
        logits: Tensor = self.lm_head(self.norm(state))
        return logits


@dataclass(frozen=True, slots=True)
class Beginnings:
    """What of the target a head starts from."""

    head_rows: Tensor  # [columns, hidden] of its output matrix
    norm: Tensor  # [hidden], its last norm
    taps: Tensor  # [rows, taps * hidden] of ordinary text


def begin(shape: HeadShape, beginnings: Beginnings, seed: int) -> Head:
    """A fresh head: the target's output, and a layer that adds nothing yet.

    The taps' features differ in size by a factor of hundreds; `input_norm` starts with weights that
    level them, so that one learning rate suits all of `fc`.
    """
    head = Head(shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_(0.1)
        wide = beginnings.taps.float().cpu()
        normal = functional.rms_norm(wide, wide.shape[-1:], None, shape.eps)
        level = normal.square().median(0).values.add_(1e-4).rsqrt_()
        head.input_norm.weight.copy_(level.clamp_(max=50.0))
        # at full scale a head that knows nothing yet is as sure of itself as the target
        head.norm.weight.copy_(beginnings.norm / 2)
        head.lm_head.weight.copy_(beginnings.head_rows)
    return head
