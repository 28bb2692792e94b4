"""What a decoder layer is made of: one way to mix tokens, and one to feed each forward."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from forerun.kernels.operands import BiasedLinear


@dataclass(frozen=True, slots=True)
class AttentionOperands:
    """Causal attention. Norms are float32 factors [head_dim]; None where the family has none."""

    qkv: Sequence[BiasedLinear]  # one to three: together queries, keys, values
    query_norm: Tensor | None  # of each head
    key_norm: Tensor | None
    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # of scores
    window: int | None  # positions that a query sees, itself included; None: all before it
    rope: int = 0  # which of the model's tables of angles turns it
    rotary_dim: int | None = None  # leading dimensions of a head that turn; None: all
    gate: BiasedLinear | None = None  # as wide as the queries: its sigmoid multiplies the result


@dataclass(frozen=True, slots=True)
class DeltaOperands:
    """A gated-delta layer (06 QWN-7 to QWN-10). Tensors are float32."""

    inputs: Sequence[BiasedLinear]  # one or two: together queries, keys, values, output gates
    gates: Tensor  # [2 * value_heads, hidden]: rows of beta, then of alpha
    conv_weight: Tensor  # [channels, taps], channels those of queries, keys and values
    conv_bias: Tensor | None  # [channels]
    log_decay: Tensor  # [value_heads] A_log
    step_bias: Tensor  # [value_heads] dt_bias
    norm: Tensor  # [value_dim] factors of each head's result
    key_heads: int
    value_heads: int  # a multiple of key_heads
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class MlpOperands:
    """A gated MLP."""

    gate: BiasedLinear
    up: BiasedLinear
    down: BiasedLinear
    activation: str  # "silu" or "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class ExpertOperands:
    """A mixture of gated MLPs, of which each token takes some (06 QWN-12, Q3M-2)."""

    router: Tensor  # [experts, hidden] float32
    top: int  # experts a token
    renormalised: bool  # the weights of a token's experts sum to 1
    experts: Sequence[MlpOperands]
    shared: MlpOperands | None  # which every token takes as well,
    shared_gate: Tensor | None  # times the sigmoid of its product with this [hidden] float32


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """A decoder layer. Norms are float32 factors [hidden]; None where the family has none."""

    mixer: AttentionOperands | DeltaOperands
    output: BiasedLinear  # of what the mixer makes
    feed_forward: MlpOperands | ExpertOperands
    input_norm: Tensor
    mlp_norm: Tensor
    attended_norm: Tensor | None  # of what the mixer adds to the stream
    output_norm: Tensor | None  # of what the feed-forward adds to it
    epsilon: float
    token_norm: Tensor | None = None  # of tokens, which attention reads beside the stream
    normed_residual: bool = False  # what attention adds to is the normed stream

    @property
    def linears(self) -> Sequence[BiasedLinear]:
        """Those of the mixer, the output, those of the feed-forward."""
        return (*_of_mixer(self.mixer), self.output, *_of_feed_forward(self.feed_forward))


def _of_mixer(mixer: AttentionOperands | DeltaOperands) -> Sequence[BiasedLinear]:
    if isinstance(mixer, DeltaOperands):
        return mixer.inputs
    return mixer.qkv if mixer.gate is None else (*mixer.qkv, mixer.gate)


def _of_feed_forward(part: MlpOperands | ExpertOperands) -> Sequence[BiasedLinear]:
    if isinstance(part, MlpOperands):
        return (part.gate, part.up, part.down)
    mlps = part.experts if part.shared is None else (*part.experts, part.shared)
    return [linear for mlp in mlps for linear in (mlp.gate, mlp.up, mlp.down)]
