"""The weights of one decoder layer as picked from a checkpoint, before anything is made of them.

Either the kernel of whole layers takes those of all layers, or blocks of separate operations are
made of them. Whoever makes something of a list empties it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from forerun.kernels.gated_delta.reference import decisions
from forerun.nn.linear import LinearWeights
from forerun.nn.norm import RMSNorm
from forerun.nn.recurrence import DeltaHeads


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of an attention layer; `query / kv` query heads share a key head."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class LayerForm:
    """How the attention layers of a family differ."""

    scale: float  # of attention scores
    activation: str
    biased: bool = False  # attention has biases, and their absence is an error
    mlp_biased: bool = False
    head_norms: bool = False  # of each query and key head (QW3-1, GM3-4)
    outer_norms: bool = False  # of what attention and MLP add to the stream (GM3-5)
    window: int | None = None
    rope: int = 0  # which of the model's rotary tables turns it
    rotary_dim: int | None = None  # leading dimensions of a head that turn; None: all


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Causal attention."""

    heads: Heads
    scale: float
    window: int | None
    rope: int
    rotary_dim: int | None
    norm: RMSNorm | None  # of queries and keys as one table, a row a head
    qkv: list[LinearWeights]
    gate: list[LinearWeights]  # of its result (QWN-6); empty where the family has none

    @property
    def linears(self) -> Sequence[LinearWeights]:
        return (*self.qkv, *self.gate)

    def clear(self) -> None:
        """Let go of the weights: something has been made of them."""
        self.qkv.clear()
        self.gate.clear()


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """A gated-delta layer (QWN-7 to QWN-10)."""

    heads: DeltaHeads
    inputs: list[LinearWeights]  # together queries, keys, values, output gates
    gates: Tensor  # [2 * value_heads, hidden]: rows of beta, then of alpha
    conv_weight: Tensor  # [channels, taps]
    conv_bias: Tensor | None
    log_decay: Tensor  # [value_heads] float32
    step_bias: Tensor  # [value_heads] float32
    norm: RMSNorm  # [value_dim], of each head's result

    def decisions(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Decay and beta, [B, L, value_heads] float32."""
        return decisions(functional.linear(x.float(), self.gates), self.step_bias, self.log_decay)

    @property
    def linears(self) -> Sequence[LinearWeights]:
        return self.inputs

    def clear(self) -> None:
        """Let go of the weights: something has been made of them."""
        self.inputs.clear()


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """A gated MLP."""

    activation: str
    gate_up: list[LinearWeights]
    down: list[LinearWeights]

    @property
    def linears(self) -> Sequence[LinearWeights]:
        return (*self.gate_up, *self.down)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A mixture of experts (QWN-12, Q3M-2). Stacks are two-dimensional, expert after expert."""

    activation: str
    experts: int
    top: int  # experts a token
    renormalised: bool
    router: Tensor  # [experts, hidden]
    gate_up: LinearWeights  # [experts * 2 * inner, hidden], of each expert gate before up
    down: LinearWeights  # [experts * hidden, inner]
    shared: MlpWeights | None
    shared_gate: Tensor | None  # [hidden]

    @property
    def linears(self) -> Sequence[LinearWeights]:
        shared = () if self.shared is None else self.shared.linears
        return (self.gate_up, self.down, *shared)


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The norms of one layer over the residual stream."""

    input: RMSNorm
    mlp: RMSNorm
    attended: RMSNorm | None = None  # of what the mixer adds to the stream
    output: RMSNorm | None = None  # of what the feed-forward adds to it
    tokens: RMSNorm | None = None  # of what a draft's attention reads beside the stream (03 EGL-4)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer."""

    index: int
    epsilon: float
    norms: LayerNorms
    mixer: AttentionWeights | DeltaWeights
    output: list[LinearWeights]  # of what the mixer makes
    feed_forward: MlpWeights | ExpertWeights
    normed_residual: bool = False  # what attention adds to is the normed stream (03 EGL-4)

    @property
    def linears(self) -> Sequence[LinearWeights]:
        return (*self.mixer.linears, *self.output, *self.feed_forward.linears)
