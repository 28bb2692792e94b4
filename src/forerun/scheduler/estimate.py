"""How much memory a model will need, from its manifest and config.json alone (spec 08 FIT-1).

What a config does not say is guessed upwards: an unknown kind of layer is taken for full
attention, an unknown type for two bytes, an unknown number of key heads for all of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from forerun.base.context import automatic_context
from forerun.base.units import MIB
from forerun.store.manifest import Layer
from forerun.store.stored import StoredModel

LEAST_CONTEXT = 4  # SCH-7

# Workspaces of cuBLAS and kernels that are loaded when first used, beside the 457 MiB of a context:
# an H200 lost 951 MB to a process whose weights, caches and activations were estimated at 357 MB.
GPU_WORKSPACE = 128 * MIB
CPU_CHUNK, GPU_CHUNK = 512, 2048  # largest chunks of a prompt (05 PRE-1)
SLACK = 256  # of a sliding-window layer, whose buffer has window + 2 * SLACK rows (01 ROT-1)

_ELEMENT = {"float32": 4, "float64": 8}  # every other type is computed in two bytes
_TABLE = "embed_tokens."
_SLIDING, _LINEAR = "sliding_attention", "linear"
# Parts of vision models that are left in their files.
_TOWERS = tuple(
    f"{container}{part}."
    for container in ("", "model.")
    for part in ("vision_tower", "visual", "multi_modal_projector")
)
_OWN_HEAD = "mtp."  # a checkpoint's own draft head
# What a forward holds at once, in rows of a chunk: the stream, its norm, their sum and a copy.
_STREAMS, _INNERS = 4, 3
_ROUTED = 2  # rows of the stream an expert of a token: gathered, and made
_SCANS = 8  # float32 rows of a recurrent layer's channels: raw, filtered, normed, those of the scan
_ROUND = 16  # columns of a verification, which a recurrent cache keeps (01 REC-5)
_LOGIT_ROWS = 8  # of fp32: logits, what the sampler makes of them, the counts of the penalties


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The gated-delta layers of a model, all alike."""

    layers: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tail: int  # rows of the convolution that are kept

    @property
    def channels(self) -> int:
        """Of queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def nbytes(self) -> int:
        """What caches keep, whatever the context: two states, and the rows of a round beside each.

        The tail is taken for float32, which it is where the C++ kernels serve.
        """
        state = self.value_heads * self.value_dim * self.key_dim
        fed = (self.channels - self.key_heads * self.key_dim) + 2 * self.value_heads
        rows = (self.tail + _ROUND) * self.channels + _ROUND * fed
        return 4 * 2 * (state + rows) * self.layers


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that memory depends on."""

    windows: tuple[int | None, ...]  # of each layer of attention; None: all before it is seen
    query_heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    inner: int
    vocabulary: int
    element: int  # bytes of an activation and of a cached value
    max_context: int | None  # None: the config does not say
    recurrent: RecurrentShape | None = None
    routed: int = 0  # experts a token


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes."""

    weights: int
    caches: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.activations


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What is read of a model before it is loaded."""

    shape: ModelShape
    weights: int  # bytes of all tensors as stored
    repacked: int  # what the CPU's own formats of quantised weights take beyond that
    num_ctx: int | None  # the model's own parameters
    num_gpu: int | None
    draft: ModelShape | None = None  # of a draft with caches of its own


def read_facts(model: StoredModel) -> ModelFacts:
    """Reads a few small files. LoadError if the model lacks one, StoreError if one is damaged."""
    parameters, shape = model.parameters, read_shape(model.json("config.json"))
    num_ctx, num_gpu = parameters.get("num_ctx"), parameters.get("num_gpu")
    return ModelFacts(
        shape=shape,
        weights=sum(layer.blob.size for layer in _loaded(model)),
        repacked=_repacked(model, shape),
        num_ctx=num_ctx if isinstance(num_ctx, int) else None,
        num_gpu=num_gpu if isinstance(num_gpu, int) else None,
        draft=_draft(model, shape),
    )


def read_shape(config: Mapping[str, object]) -> ModelShape:
    """The shape that a Hugging Face config.json describes. Never fails: see above."""
    nested = config.get("text_config") or config.get("transformer_layer_config")  # a head's
    fields = {**config, **nested} if isinstance(nested, dict) else config
    hidden = _count(fields, ("hidden_size", "n_embd", "d_model"), 4096)
    heads = _count(fields, ("num_attention_heads", "n_head"), max(1, hidden // 64))
    head_dim = _count(fields, ("head_dim",), max(1, hidden // heads))
    layers = _count(fields, ("num_hidden_layers", "n_layer"), 32)
    longest = _count(fields, ("max_position_embeddings", "n_positions"), 0)
    attends = _attending(fields, min(layers, 10_000))
    return ModelShape(
        windows=_windows(fields, attends),
        query_heads=heads,
        kv_heads=_count(fields, ("num_key_value_heads",), heads),
        head_dim=head_dim,
        hidden=hidden,
        inner=_count(fields, ("intermediate_size", "n_inner"), 4 * hidden),
        vocabulary=_count(fields, ("vocab_size",), 262_144),
        element=_element(fields),
        max_context=longest or None,
        recurrent=_recurrent(fields, attends.count(False)),
        routed=_count(fields, ("num_experts_per_tok",), 0),
    )


def estimate(
    shape: ModelShape, weights: int, *, context: int, chunk: int, draft: ModelShape | None = None
) -> Need:
    """What the model takes once its caches are full.

    A forward over a chunk at the end of a full context sees all of it, so nothing here depends on
    how much of a prompt is cached already.
    """
    chunk = min(chunk, context)
    caches = sum(_caches(each, context) for each in (shape, draft) if each is not None)
    return Need(weights, caches, _activations(shape, context=context, chunk=chunk))


def choose_context(
    facts: ModelFacts, asked: int | None, stated: int | None, gpu_total: int | None
) -> int:
    """Tokens of context (SCH-7): asked, else the model's own, else stated, else by the device.

    stated     FORERUN_CONTEXT_LENGTH
    gpu_total  bytes of the GPU, None on a CPU

    Never above the model's maximum.
    """
    chosen = asked or facts.num_ctx or stated or automatic_context(gpu_total)
    chosen = max(LEAST_CONTEXT, chosen)
    longest = facts.shape.max_context
    return chosen if longest is None else min(chosen, longest)


def _repacked(model: StoredModel, shape: ModelShape) -> int:
    """Beside a quantised token table lies the head made of it, and scales get wider (kernels)."""
    tensors = _loaded(model)
    table = max((layer.blob.size for layer in tensors if _TABLE in layer.name), default=0)
    dense = shape.vocabulary * shape.hidden * 2
    if table >= dense:
        return 0
    return table + sum(layer.blob.size for layer in tensors) // 8


def _loaded(model: StoredModel) -> list[Layer]:
    """Whose tensors a model or its draft takes; of a head beside another draft nobody does."""
    left = _TOWERS
    if model.draft is not None:
        left = (*left, _OWN_HEAD, model.draft.tensor_prefix + _OWN_HEAD)
    return [layer for layer in model.tensors if not layer.name.startswith(left)]


def _draft(model: StoredModel, shape: ModelShape) -> ModelShape | None:
    """Of the manifest, else the checkpoint's own head, whose layer is like those of the model."""
    if model.draft is not None:
        return read_shape(model.json(model.draft.config))
    if not model.has_own_head:
        return None
    return replace(shape, windows=(None,), recurrent=None)


def _row(shape: ModelShape) -> int:
    """Bytes of a token's keys and values in one layer."""
    return 2 * shape.kv_heads * shape.head_dim * shape.element


def _caches(shape: ModelShape, context: int) -> int:
    held = [context if window is None else window + 2 * SLACK for window in shape.windows]
    states = 0 if shape.recurrent is None else shape.recurrent.nbytes
    return _row(shape) * sum(held) + states


def _activations(shape: ModelShape, *, context: int, chunk: int) -> int:
    attended = (2 * shape.query_heads + 2 * shape.kv_heads) * shape.head_dim
    wide = _STREAMS * shape.hidden + _INNERS * shape.inner + attended
    wide += _ROUTED * shape.routed * shape.hidden
    scanned = 0 if shape.recurrent is None else 4 * _SCANS * shape.recurrent.channels
    mask = chunk * context * shape.element
    windows = [window for window in shape.windows if window is not None]
    # one layer's at a time (01 ROT-7)
    staged = _row(shape) * (max(windows) + chunk) if windows else 0
    logits = _LOGIT_ROWS * 4 * shape.vocabulary
    return chunk * (wide * shape.element + scanned) + mask + staged + logits


def _attending(fields: Mapping[str, object], layers: int) -> tuple[bool, ...]:
    """Which layers keep keys and values; the others are recurrent."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        linear = [_LINEAR in str(kind) for kind in kinds[:layers]]
        return tuple(layer >= len(linear) or not linear[layer] for layer in range(layers))
    if "linear_num_value_heads" not in fields:
        return (True,) * layers
    interval = _count(fields, ("full_attention_interval",), 4)
    return tuple((layer + 1) % interval == 0 for layer in range(layers))


def _recurrent(fields: Mapping[str, object], layers: int) -> RecurrentShape | None:
    if not layers:
        return None
    return RecurrentShape(
        layers=layers,
        key_heads=_count(fields, ("linear_num_key_heads",), 16),
        value_heads=_count(fields, ("linear_num_value_heads",), 32),
        key_dim=_count(fields, ("linear_key_head_dim",), 128),
        value_dim=_count(fields, ("linear_value_head_dim",), 128),
        tail=_count(fields, ("linear_conv_kernel_dim",), 4) - 1,
    )


def _windows(fields: Mapping[str, object], attends: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Of the layers that attend."""
    window = _count(fields, ("sliding_window",), 0)
    if not window or fields.get("use_sliding_window") is False:
        return (None,) * attends.count(True)
    slides = _slides(fields)
    layers = [layer for layer, attending in enumerate(attends) if attending]
    return tuple(window if slides(layer) else None for layer in layers)


def _slides(fields: Mapping[str, object]) -> Callable[[int], bool]:
    """Whether a layer slides; full is the dearer guess where the config leaves it open."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        return lambda layer: layer < len(kinds) and kinds[layer] == _SLIDING
    pattern = _count(fields, ("sliding_window_pattern",), 0)
    if not pattern and str(fields.get("model_type", "")).startswith("gemma3"):
        pattern = 6  # what the family means by leaving it out
    if pattern:
        return lambda layer: (layer + 1) % pattern != 0
    return lambda _: False


def _element(fields: Mapping[str, object]) -> int:
    stated = fields.get("dtype") or fields.get("torch_dtype")
    return _ELEMENT.get(str(stated), 2)


def _count(fields: Mapping[str, object], names: tuple[str, ...], default: int) -> int:
    """The first of `names` that is a whole number above 0."""
    for name in names:
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**53:
            return max(1, int(value))
    return default
