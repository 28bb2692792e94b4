"""The C++ kernels as operators of torch, so that what calls them can be traced, compiled, exported.

A weight travels as its repacked bytes, and what describes it as numbers. `threads` is the size of
the team; 0 asks for the references in plain torch, which also serve what the C++ kernels cannot.

Nothing in forerun imports this: it is for programs that trace, compile or export a model which has
these kernels in it, and importing it registers the operators. The engine calls the kernels' own
classes instead. Measured for one row and tiny weights: torch's dispatch takes 3 us, and with the
structs that C++ reads, which an operator makes anew for each call, a product takes 32 us instead
of 5, and a layer 260 us instead of 3.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.library import custom_op

from forerun.kernels.decoder_layer import native as native_layer
from forerun.kernels.decoder_layer import reference
from forerun.kernels.decoder_layer.native import ACTIVATIONS, AttentionLayer, NativeLayers
from forerun.kernels.decoder_layer.reference import Place
from forerun.kernels.layer_operands import AttentionOperands, LayerOperands, MlpOperands
from forerun.kernels.linear_affine import native as native_linear
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.operands import BiasedLinear, RepackedWeight
from forerun.kernels.output_head import native as native_head
from forerun.kernels.output_head import reference as output_head
from forerun.kernels.output_head.native import NativeHead

Numbers = Sequence[int]
Pair = tuple[Tensor, Tensor]

ACTIVATION_NAMES = {index: name for name, index in ACTIVATIONS.items()}
WEIGHT_NUMBERS = 5
LAYER_NUMBERS = 9
OTHER_TENSORS = 8  # of a layer, before the biases


def linear(
    x: Tensor, weight: RepackedWeight, bias: Tensor | None = None, *, threads: int
) -> Tensor:
    """[..., in] to [..., out] in the dtype of `x`."""
    out: Tensor = _linear(x, weight.data, bias, _numbers(weight), threads)
    return out


def head_logits(x: Tensor, weight: RepackedWeight, *, threads: int) -> Tensor:
    """[..., in] to [..., out] in the dtype of `x`; more exact than `linear` may be."""
    out: Tensor = _head_logits(x, weight.data, _numbers(weight), threads)
    return out


def head_best(x: Tensor, weight: RepackedWeight, count: int, *, threads: int) -> Pair:
    """The `count` largest logits of rows [n, in] in float32, and their int64 ids.

    From the largest down, of equal ones the smaller id first; where fewer are numbers, ids are -1.
    """
    values, ids = _head_best(x, weight.data, _numbers(weight), count, threads)
    return values, ids


def dense_layer(
    layer: LayerOperands, stream: Tensor, turns: Pair, rows: Pair, at: Place, *, threads: int
) -> None:
    """As `decoder_layer.reference` says; the layer's weights are repacked ones."""
    mixer, mlp = layer.mixer, layer.feed_forward
    assert layer.token_norm is None, "a draft's first layer has no operator"
    assert isinstance(mixer, AttentionOperands), "a layer of attention has an operator"
    assert isinstance(mlp, MlpOperands), "one of an MLP has"
    assert mixer.gate is None, "gated attention has no operator"
    assert mixer.rotary_dim is None, "heads of an operator's layer turn as a whole"
    weights = [part.weight for part in layer.linears]
    repacked = [weight for weight in weights if isinstance(weight, RepackedWeight)]
    assert len(repacked) == len(weights), "weights of a layer's operator are repacked"
    tensors = [
        *(*turns, layer.input_norm, layer.mlp_norm, layer.attended_norm, layer.output_norm),
        *(mixer.query_norm, mixer.key_norm, *(part.bias for part in layer.linears)),
    ]
    numbers = [
        *(at.first_row, at.live, at.first_position, threads, mixer.heads, mixer.kv_heads),
        *(mixer.head_dim, mixer.window or 0, ACTIVATIONS[mlp.activation]),
        *(number for weight in repacked for number in _numbers(weight)),
    ]
    packed, factors = [weight.data for weight in repacked], [layer.epsilon, mixer.scale]
    _dense_layer(stream, *rows, tensors, packed, numbers, factors)


@custom_op(
    "forerun::linear",
    mutates_args=(),
    schema="(Tensor x, Tensor packed, Tensor? bias, int[] weight, int threads) -> Tensor",
)
def _linear(
    x: Tensor, packed: Tensor, bias: Tensor | None, numbers: Numbers, threads: int
) -> Tensor:
    weight = _weight(packed, numbers)
    if threads and native_linear.why_not(weight, x.dtype) is None:
        return NativeLinear(weight, threads, bias)(x)
    return reference.exact_product(BiasedLinear(weight, bias), x.float()).to(x.dtype)


@custom_op(
    "forerun::head_logits",
    mutates_args=(),
    schema="(Tensor x, Tensor packed, int[] weight, int threads) -> Tensor",
)
def _head_logits(x: Tensor, packed: Tensor, numbers: Numbers, threads: int) -> Tensor:
    weight = _weight(packed, numbers)
    if threads and native_head.why_not(weight) is None:
        return NativeHead(weight, threads)(x)
    return output_head.logits(x, weight).to(x.dtype)


@custom_op(
    "forerun::head_best",
    mutates_args=(),
    schema="(Tensor x, Tensor packed, int[] weight, int count, int threads) -> (Tensor, Tensor)",
)
def _head_best(x: Tensor, packed: Tensor, numbers: Numbers, count: int, threads: int) -> Pair:
    weight = _weight(packed, numbers)
    if threads and native_head.why_not(weight) is None:
        return NativeHead(weight, threads).best(x, count)
    return output_head.best(output_head.logits(x, weight), count)


@custom_op(
    "forerun::dense_layer",
    mutates_args=("stream", "keys", "values"),
    schema="(Tensor(a!) stream, Tensor(b!) keys, Tensor(c!) values, Tensor?[] tensors, "
    "Tensor[] packed, SymInt[] numbers, float[] factors) -> ()",
)
def _dense_layer(
    stream: Tensor,
    keys: Tensor,
    values: Tensor,
    tensors: Sequence[Tensor | None],
    packed: Sequence[Tensor],
    numbers: Numbers,
    factors: Sequence[float],
) -> None:
    layer = _layer(tensors, packed, numbers, factors)
    first_row, live, first_position, threads = numbers[:4]
    cosines, sines = tensors[:2]
    assert cosines is not None
    assert sines is not None
    turns, rows = (cosines.contiguous(), sines.contiguous()), (keys, values)
    at = Place(stream.shape[0], first_row, live, first_position)
    if not threads or native_layer.why_not(layer, keys.dtype) is not None:
        return reference.attention_layer(layer, stream, turns, rows, at)
    head_dim = numbers[6]
    assert stream.is_contiguous(), "the kernel changes a stream in place"
    for part in rows:
        assert part.stride()[1:] == (head_dim, 1), "rows of a head follow each other"
    kernels = NativeLayers([layer], keys.dtype, threads)
    cosines, sines = turns
    kernels.enter(stream, at.width, [(cosines.data_ptr(), sines.data_ptr())])
    (kernel,) = kernels.layers
    assert isinstance(kernel, AttentionLayer), "it was made of one"
    kernel.place(keys, values, first_row=first_row, live=live, first_position=first_position)
    kernels.run(0, 1)
    return None


@_linear.register_fake
def _(x: Tensor, packed: Tensor, bias: Tensor | None, numbers: Numbers, threads: int) -> Tensor:  # noqa: ARG001
    return _outputs(x, numbers)


@_head_logits.register_fake
def _(x: Tensor, packed: Tensor, numbers: Numbers, threads: int) -> Tensor:  # noqa: ARG001
    return _outputs(x, numbers)


@_head_best.register_fake
def _(x: Tensor, packed: Tensor, numbers: Numbers, count: int, threads: int) -> Pair:  # noqa: ARG001
    shape = (*_outputs(x, numbers).shape[:-1], count)
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape, dtype=torch.int64)


@_dense_layer.register_fake
def _(stream: Tensor, *others: object) -> None:  # noqa: ARG001
    return None


def _outputs(x: Tensor, numbers: Numbers) -> Tensor:
    rows, columns = numbers[:2]
    assert x.shape[-1] == columns, f"{x.shape[-1]} columns instead of {columns}"
    return x.new_empty((*x.shape[:-1], rows))


def _numbers(weight: RepackedWeight) -> list[int]:
    shape = (weight.out_features, weight.in_features, weight.group, weight.bits)
    return [*shape, int(weight.wide_terms)]


def _weight(packed: Tensor, numbers: Numbers) -> RepackedWeight:
    rows, columns, group, bits, wide = numbers
    return RepackedWeight(packed, rows, columns, group, bits, bool(wide))


def _layer(
    tensors: Sequence[Tensor | None],
    packed: Sequence[Tensor],
    numbers: Numbers,
    factors: Sequence[float],
) -> LayerOperands:
    """What `dense_layer` took apart."""
    heads, kv_heads, head_dim, window, activation = numbers[4:LAYER_NUMBERS]
    shapes = numbers[LAYER_NUMBERS:]
    parts = [
        BiasedLinear(_weight(data, shapes[at : at + WEIGHT_NUMBERS]), bias)
        for data, bias, at in zip(
            packed, tensors[OTHER_TENSORS:], range(0, len(shapes), WEIGHT_NUMBERS), strict=True
        )
    ]
    *qkv, output, gate, up, down = parts
    input_norm, mlp_norm, attended_norm, output_norm, query_norm, key_norm = tensors[2:8]
    assert input_norm is not None
    assert mlp_norm is not None
    return LayerOperands(
        mixer=AttentionOperands(
            qkv=qkv,
            query_norm=query_norm,
            key_norm=key_norm,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=factors[1],
            window=window or None,
        ),
        output=output,
        feed_forward=MlpOperands(gate, up, down, ACTIVATION_NAMES[activation]),
        input_norm=input_norm,
        mlp_norm=mlp_norm,
        attended_norm=attended_norm,
        output_norm=output_norm,
        epsilon=factors[0],
    )
