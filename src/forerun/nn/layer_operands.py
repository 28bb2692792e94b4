"""Weights of decoder layers as the kernel of whole layers takes them."""

from collections.abc import Iterable

from torch import Tensor

from forerun.kernels.layer_operands import (
    AttentionOperands,
    DeltaOperands,
    ExpertOperands,
    LayerOperands,
    MlpOperands,
)
from forerun.kernels.operands import BiasedLinear
from forerun.nn.layer_weights import (
    AttentionWeights,
    DeltaWeights,
    ExpertWeights,
    LayerWeights,
    MlpWeights,
)
from forerun.nn.linear import LinearWeights, stack_parts
from forerun.nn.norm import RMSNorm
from forerun.quant.packed import PackedWeight


def layer_operands(layer: LayerWeights) -> LayerOperands | str:
    """Or why the kernel cannot serve."""
    if not all(_quantised(part) for part in layer.linears):
        return "not all weights are quantised, or some scale is apart from groups"
    norms, mixer = layer.norms, layer.mixer
    (output,) = _linears(layer.output)
    return LayerOperands(
        mixer=_attention(mixer) if isinstance(mixer, AttentionWeights) else _delta(mixer),
        output=output,
        feed_forward=_feed_forward(layer.feed_forward),
        input_norm=_factors(norms.input),
        mlp_norm=_factors(norms.mlp),
        attended_norm=None if norms.attended is None else _factors(norms.attended),
        output_norm=None if norms.output is None else _factors(norms.output),
        epsilon=layer.epsilon,
        token_norm=None if norms.tokens is None else _factors(norms.tokens),
        normed_residual=layer.normed_residual,
    )


def _attention(mixer: AttentionWeights) -> AttentionOperands:
    heads = mixer.heads
    query_norm = key_norm = None
    if mixer.norm is not None:
        table = _factors(mixer.norm)
        query_norm, key_norm = table[0], table[heads.query]
    gates = _linears(mixer.gate)
    return AttentionOperands(
        qkv=_linears(mixer.qkv),
        query_norm=query_norm,
        key_norm=key_norm,
        heads=heads.query,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        scale=mixer.scale,
        window=mixer.window,
        rope=mixer.rope,
        rotary_dim=mixer.rotary_dim,
        gate=gates[0] if gates else None,
    )


def _delta(mixer: DeltaWeights) -> DeltaOperands:
    heads = mixer.heads
    return DeltaOperands(
        inputs=_linears(mixer.inputs),
        gates=mixer.gates.float(),
        conv_weight=mixer.conv_weight.float(),
        conv_bias=None if mixer.conv_bias is None else mixer.conv_bias.float(),
        log_decay=mixer.log_decay.float(),
        step_bias=mixer.step_bias.float(),
        norm=_factors(mixer.norm),
        key_heads=heads.key_heads,
        value_heads=heads.value_heads,
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
    )


def _feed_forward(part: MlpWeights | ExpertWeights) -> MlpOperands | ExpertOperands:
    return _mlp(part) if isinstance(part, MlpWeights) else _experts(part)


def _mlp(part: MlpWeights) -> MlpOperands:
    gate, up = _linears(part.gate_up)
    (down,) = _linears(part.down)
    return MlpOperands(gate, up, down, part.activation)


def _experts(part: ExpertWeights) -> ExpertOperands:
    gates_and_ups = _linears(stack_parts(part.gate_up, 2 * part.experts))
    downs = _linears(stack_parts(part.down, part.experts))
    mlps = zip(gates_and_ups[::2], gates_and_ups[1::2], downs, strict=True)
    return ExpertOperands(
        router=part.router.float(),
        top=part.top,
        renormalised=part.renormalised,
        experts=[MlpOperands(gate, up, down, part.activation) for gate, up, down in mlps],
        shared=None if part.shared is None else _mlp(part.shared),
        shared_gate=None if part.shared_gate is None else part.shared_gate.float(),
    )


def _linears(parts: Iterable[LinearWeights]) -> list[BiasedLinear]:
    return [_linear(part) for part in parts]


def _linear(part: LinearWeights) -> BiasedLinear:
    assert isinstance(part.weight, PackedWeight), "all weights are quantised"
    folded = part.weight.folded()
    assert folded is not None, "all weights have their scales in their groups"
    return BiasedLinear(folded, part.bias)


def _quantised(part: LinearWeights) -> bool:
    """And as groups say alone, or can be made to say."""
    weight = part.weight
    if not isinstance(weight, PackedWeight):
        return False
    return weight.global_scale is None or weight.format.affine


def _factors(norm: RMSNorm) -> Tensor:
    assert norm.factors is not None, "a decoder layer has no bare norms"
    return norm.factors
