"""What a folder's weights are: floats, 8-bit floats in blocks, or quantised already (07 CLS)."""

from collections.abc import Mapping
from enum import Enum

from forerun.base.errors import ImportFailedError, RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.shown import shown
from forerun.importer.policy.kinds import SOURCE
from forerun.importer.prequantised import fuse_parts, is_activation_scale
from forerun.importer.source_tensors import SourceTensor, plain
from forerun.store.headers import TensorEntry

Entries = Mapping[str, TensorEntry]

BLOCK = 128  # rows and columns that share a scale in 8-bit floats
E4M3 = "F8_E4M3"
_SCALES = ("_scale_inv", "_scale")  # of E4M3 weights, after their names; the first is preferred
_SCALE_DTYPES = ("F32", "BF16", "F16")
_UNREAD = ("F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2")
_WORDS = ("U8", "U32")


class Class(Enum):
    FLOAT = "float"
    BLOCK_FP8 = "block fp8"
    PREQUANTISED = "quantised"

    @property
    def kind(self) -> str:
        """The type that an import makes of the weights without being asked (CLS-3)."""
        return "mxfp8" if self is Class.BLOCK_FP8 else SOURCE


def classify(entries: Entries) -> Class:
    """By the tensors alone: configurations of quantisers are often wrong (CLS-1, CLS-2)."""
    _refuse_unread(entries)
    if any(_tells_quantisation(name, entries) for name in entries):
        return Class.PREQUANTISED
    if any(entry.dtype == E4M3 for entry in entries.values()):
        return Class.BLOCK_FP8
    return Class.FLOAT


def source_tensors(found: Class, entries: Entries, config: JsonObject) -> dict[str, SourceTensor]:
    """Every weight of a folder by its name. ImportFailedError names the tensor at fault."""
    if found is Class.FLOAT:
        tensors = [plain(entry) for entry in entries.values()]
    elif found is Class.BLOCK_FP8:
        tensors = _block_fp8(entries, config)
    else:
        tensors = fuse_parts(entries, config)
    by_name: dict[str, SourceTensor] = {}
    for tensor in tensors:
        other = by_name.setdefault(tensor.name, tensor)
        if other is not tensor:
            raise ImportFailedError(
                f"tensors {other.values.name} and {tensor.values.name} are both {tensor.name}; "
                f"keep one of them"
            )
    return by_name


def refuse_request(found: Class, kind: str) -> None:
    """CLS-3, CLS-4: what was rounded once is not rounded again to something else."""
    if kind and found is not Class.FLOAT:
        raise RequestError(
            f"quantize is {kind}, and the weights of this source are {found.value} already; leave "
            f"quantize out, or import the model's float checkpoint"
        )


def _tells_quantisation(name: str, entries: Entries) -> bool:
    if name.endswith((".scales", ".weight_packed")):
        return True
    weight = entries.get(name.removesuffix("_scale"))
    return name.endswith(".weight_scale") and weight is not None and weight.dtype in _WORDS


def _refuse_unread(entries: Entries) -> None:
    for entry in entries.values():
        if entry.dtype in _UNREAD:
            raise ImportFailedError(
                f"tensor {entry.name} is of type {entry.dtype}, which is not read; take the "
                f"model's checkpoint in bf16, fp16, E4M3 or a quantised form"
            )


def _block_fp8(entries: Entries, config: JsonObject) -> list[SourceTensor]:
    """PRQ-4. Scales go with their weights, activation scales are dropped."""
    weights = [entry for entry in entries.values() if entry.dtype == E4M3]
    _check_block(weights[0], config)
    scales = {weight.name: _block_scale(weight, entries) for weight in weights}
    taken = {name + suffix for name in scales for suffix in _SCALES}
    return [
        SourceTensor(entry.name, entry.shape, entry.dtype, entry, scale=scales.get(entry.name))
        for entry in entries.values()
        if entry.name not in taken and not is_activation_scale(entry.name)
    ]


def _block_scale(weight: TensorEntry, entries: Entries) -> TensorEntry:
    names = [weight.name + suffix for suffix in _SCALES if weight.name + suffix in entries]
    if not names:
        raise ImportFailedError(
            f"tensor {weight.name} is E4M3 and has no scales {weight.name}_scale_inv; the "
            f"checkpoint is incomplete"
        )
    scale = entries[names[0]]
    if len(weight.shape) < 2 or scale.shape != _blocks(weight.shape):
        raise ImportFailedError(
            f"tensor {scale.name} has shape {list(scale.shape)}, and {weight.name} "
            f"{list(weight.shape)} needs a scale for each {BLOCK}x{BLOCK} block"
        )
    if scale.dtype not in _SCALE_DTYPES:
        raise ImportFailedError(
            f"tensor {scale.name} is of type {scale.dtype}; scales of blocks are "
            f"{', '.join(_SCALE_DTYPES)}"
        )
    return scale


def _blocks(shape: tuple[int, ...]) -> tuple[int, ...]:
    *leading, rows, columns = shape
    return (*leading, -(-rows // BLOCK), -(-columns // BLOCK))


def _check_block(weight: TensorEntry, config: JsonObject) -> None:
    stated = _stated_block(config)
    if stated != [BLOCK, BLOCK]:
        raise ImportFailedError(
            f"tensor {weight.name} is E4M3, and weight_block_size in config.json is "
            f"{shown(stated)}; only blocks of {BLOCK}x{BLOCK} are read"
        )


def _stated_block(config: JsonObject) -> JsonValue:
    """`weight_block_size`, also where compressed-tensors spells it `block_structure`."""
    quantisation = config.get("quantization_config")
    if not isinstance(quantisation, dict):
        return None
    if "weight_block_size" in quantisation:
        return quantisation["weight_block_size"]
    groups = quantisation.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            return weights.get("block_structure")
    return None
