"""Weights that their publisher quantised, gathered from the tensors they are spread over (PRQ)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.base.errors import ImportFailedError
from forerun.base.json_types import JsonObject
from forerun.base.quantisation import BITS
from forerun.importer.policy.kinds import GROUPS
from forerun.importer.source_tensors import SourceTensor, plain
from forerun.store.headers import TensorEntry

Entries = Mapping[str, TensorEntry]

WORD_BYTES: Final = 4
_ACTIVATION_SCALES: Final = (".input_scale", ".input_global_scale")
_FLOATS: Final = ("F16", "BF16", "F32")
# What belongs to a quantised weight, and stands alone only where the rest of it is missing.
_LEFT_OVER: Final = (
    ".scales",
    ".biases",
    ".weight_packed",
    ".weight_scale",
    ".weight_scale_2",
    ".weight_global_scale",
)
_CODES: Final = ("U8", "U32", "I32", "F8_E4M3")


@dataclass(frozen=True, slots=True)
class Layout:
    """How a producer names and types the parts of a weight; names go after a common base."""

    weight: str
    dtype: str  # of the weight's codes
    scale: str
    scale_dtypes: tuple[str, ...]
    bias: str = ""
    global_scale: str = ""
    inverted: bool = False  # its global scale divides (compressed-tensors)


MLX = Layout(".weight", "U32", ".scales", (*_FLOATS, "U8"), bias=".biases")
COMPRESSED_TENSORS = Layout(
    ".weight_packed",
    "U8",
    ".weight_scale",
    ("F8_E4M3",),
    global_scale=".weight_global_scale",
    inverted=True,
)
MODELOPT = Layout(".weight", "U8", ".weight_scale", ("F8_E4M3",), global_scale=".weight_scale_2")
LAYOUTS: Final = (MLX, COMPRESSED_TENSORS, MODELOPT)  # the first that matches


def is_activation_scale(name: str) -> bool:
    """Whether a tensor scales what goes into a linear; we have no use for these (PRQ-1)."""
    return name.endswith(_ACTIVATION_SCALES)


def fuse_parts(entries: Entries, config: JsonObject) -> list[SourceTensor]:
    """Every weight, with its parts where it has any; the rest passes through (PRQ-2).

    config  may state MLX's mode, bits and group (PRQ-3)

    ImportFailedError or LoadError naming the tensor whose parts do not make up a weight.
    """
    fused: list[SourceTensor] = []
    taken: set[str] = set()
    for entry in entries.values():
        layout = _layout_of(entry, entries)
        if layout is not None:
            weight = _Parts(entry, layout, entries).fused(config)
            fused.append(weight)
            taken |= {part.name for part in weight.parts}
    rest = [e for e in entries.values() if e.name not in taken and not is_activation_scale(e.name)]
    for entry in rest:
        _refuse_part(entry)
    return fused + [plain(entry) for entry in rest]


def _layout_of(entry: TensorEntry, entries: Entries) -> Layout | None:
    for layout in LAYOUTS:
        base = entry.name.removesuffix(layout.weight)
        if base != entry.name and entry.dtype == layout.dtype and base + layout.scale in entries:
            return layout
    return None


def _refuse_part(entry: TensorEntry) -> None:
    is_codes = entry.name.endswith(".weight") and entry.dtype in _CODES
    if is_codes or entry.name.endswith(_LEFT_OVER):
        raise ImportFailedError(
            f"tensor {entry.name} ({entry.dtype}) belongs to a quantised weight whose other "
            f"tensors are missing or of a kind that is not read; read are MLX, compressed-tensors "
            f"nvfp4 and ModelOpt nvfp4"
        )


@dataclass(frozen=True, slots=True)
class _Parts:
    """One weight's tensors, found by its layout."""

    weight: TensorEntry
    layout: Layout
    entries: Entries

    def fused(self, config: JsonObject) -> SourceTensor:
        scale = self.entries[self._base + self.layout.scale]
        if scale.dtype not in self.layout.scale_dtypes:
            raise self._wrong(scale, f"is of type {scale.dtype}")
        kind, group = self._form(scale, config)
        columns = self._words * 32 // BITS[kind]
        if scale.shape != (*self.weight.shape[:-1], columns // group):
            raise self._wrong(scale, f"has shape {list(scale.shape)}, which does not fit")
        return SourceTensor(
            name=f"{self._base}.weight",
            shape=(*self.weight.shape[:-1], columns),
            kind=kind,
            values=self.weight,
            group=group,
            scale=scale,
            bias=self._bias(scale, kind),
            global_scale=self._global_scale(),
            inverted=self.layout.inverted,
        )

    @property
    def _base(self) -> str:
        return self.weight.name.removesuffix(self.layout.weight)

    @property
    def _words(self) -> int:
        """32-bit words in a row; bytes are those of words, lowest first."""
        if not self.weight.shape:
            raise self._wrong(self.weight, "has no rows")
        columns = self.weight.shape[-1]
        if self.layout.dtype == "U32":
            return columns
        if columns % WORD_BYTES:
            raise self._wrong(self.weight, f"has rows of {columns} bytes, no whole words")
        return columns // WORD_BYTES

    def _form(self, scale: TensorEntry, config: JsonObject) -> tuple[str, int]:
        """Type and group."""
        if self.layout is not MLX:
            return "nvfp4", GROUPS["nvfp4"]
        from forerun.quant.resolve import resolve  # brings torch, which takes seconds

        groups = scale.shape[-1] if scale.shape else 0
        form = resolve(self.weight.name, (self._words, groups), metadata={}, config=config)
        return form.name, form.group

    def _bias(self, scale: TensorEntry, kind: str) -> TensorEntry | None:
        """Affine zero points. Float scales are affine ones, and these have zero points."""
        bias = self.entries.get(self._base + self.layout.bias) if self.layout.bias else None
        affine = kind in ("int4", "int8")
        if affine != (scale.dtype in _FLOATS) or affine != (bias is not None):
            points = "zero points" if bias else "no zero points"
            raise self._wrong(scale, f"is of type {scale.dtype} with {points}, unlike {kind}")
        if bias is not None and (bias.shape, bias.dtype) != (scale.shape, scale.dtype):
            raise self._wrong(bias, f"is {bias.dtype} {list(bias.shape)}, unlike its scales")
        return bias

    def _global_scale(self) -> TensorEntry | None:
        if not self.layout.global_scale:
            return None
        name = self._base + self.layout.global_scale
        scale = self.entries.get(name)
        if scale is None:
            raise ImportFailedError(
                f"tensor {name} is missing, the global scale of quantised weight "
                f"{self.weight.name}; the checkpoint is incomplete, fetch it again"
            )
        if scale.dtype != "F32" or scale.shape not in ((), (1,)):
            raise self._wrong(scale, f"is {scale.dtype} {list(scale.shape)} and not one F32 number")
        return scale

    def _wrong(self, part: TensorEntry, what: str) -> ImportFailedError:
        return ImportFailedError(
            f"tensor {part.name} of quantised weight {self.weight.name} {list(self.weight.shape)} "
            f"{what}; fetch the checkpoint again, or take another one"
        )
