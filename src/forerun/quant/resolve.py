"""Which format a quantised tensor has: the first source that answers (LIN-2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.base.quantisation import BITS
from forerun.quant.formats import AFFINE_BITS, AFFINE_GROUPS, GROUPS, QuantFormat

_SEEN_GROUPS = (16, *AFFINE_GROUPS)  # what shapes are compared with; 16 is a group of nvfp4
_MODES = ("affine", "mxfp4", "mxfp8", "nvfp4")  # of a config; all but affine name a format

# Blobs of ours say by their metadata what is in them; a config is the publisher's.
_IMPORT = "import the model again"
_STATE = (
    "state what it is under `quantization` in config.json, or take another checkpoint, and import "
    "that"
)


def resolve(
    name: str,
    columns: tuple[int, int],
    *,
    metadata: Mapping[str, str],
    config: Mapping[str, object],
) -> QuantFormat:
    """The format of weight `name`. Raises LoadError naming the tensor.

    columns   of its words and of its scale
    metadata  of the tensor: `quant_type`, `group_size`
    config    the model's config; its `quantization` speaks for all tensors or for one by path

    What is stated is checked against the shapes and never replaced by what they suggest. Shapes
    are asked for affine formats alone: all others are stated wherever they are written.
    """
    tensor = _Tensor(name, *columns, remedy=_IMPORT if "quant_type" in metadata else _STATE)
    stated = _from_metadata(tensor, metadata) or _from_config(tensor, config)
    if stated is None:
        return _from_shapes(tensor)
    if tensor.words != tensor.groups * stated.words_per_group:
        raise tensor.wrong(
            f"is stated to be {stated.name} group {stated.group}, which does not fit its "
            f"{tensor.words} words and {tensor.groups} scales a row"
        )
    return stated


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    words: int
    groups: int
    remedy: str  # for what is wrong with the statement that counts

    def group(self, bits: int) -> int:
        """Columns a scale, if codes have that many bits; 0 where that is no whole number."""
        columns = self.words * 32 // bits
        return 0 if self.groups == 0 or columns % self.groups else columns // self.groups

    def wrong(self, what: str) -> LoadError:
        return LoadError(f"quantised tensor {self.name} {what}; {self.remedy}")


def _from_metadata(tensor: _Tensor, metadata: Mapping[str, str]) -> QuantFormat | None:
    kind = metadata.get("quant_type")
    if kind is None:
        return None
    if kind not in BITS:
        raise tensor.wrong(f"has quant_type {kind!r}; served are {', '.join(BITS)}")
    return _format(tensor, kind, metadata.get("group_size"))


def _from_config(tensor: _Tensor, config: Mapping[str, object]) -> QuantFormat | None:
    """Entries for one layer stand under its path, beside the fields that speak for all."""
    general = config.get("quantization")
    if general is None:
        return None
    path = tensor.name.removesuffix(".weight")
    own = general.get(path, True) if isinstance(general, Mapping) else general
    if not isinstance(general, Mapping) or not (own is True or isinstance(own, Mapping)):
        raise tensor.wrong(f"has scales, and config.json states {own!r} for its quantization")
    if own is True:  # quantised like all others
        return _stated(tensor, general)
    # An entry that gives bits without a mode is affine, whatever mode the others have.
    mode = {"mode": "affine"} if "bits" in own else {}
    return _stated(tensor, {**general, **mode, **own})


def _stated(tensor: _Tensor, entry: Mapping[str, object]) -> QuantFormat | None:
    """What one entry of a config says: `mode`, `bits`, `group_size`."""
    mode, bits = entry.get("mode", "affine"), entry.get("bits")
    if mode not in _MODES:
        raise tensor.wrong(f"has quantization mode {mode!r}; served are {', '.join(_MODES)}")
    known = AFFINE_BITS if mode == "affine" else {str(mode): BITS[str(mode)]}
    if bits is None and mode == "affine":
        return None
    name = next((name for name, size in known.items() if bits in (size, None)), None)
    if name is None:
        sizes = " and ".join(map(str, known.values()))
        raise tensor.wrong(f"has {bits!r} bits; served in mode {mode} are {sizes}")
    return _format(tensor, name, entry.get("group_size"))


def _format(tensor: _Tensor, name: str, group_size: object) -> QuantFormat:
    """A stated format; the group follows from the shapes where it is left out."""
    text = str(tensor.group(BITS[name]) if group_size is None else group_size)
    if text not in {str(group) for group in GROUPS[name]}:
        served = ", ".join(map(str, GROUPS[name]))
        raise tensor.wrong(f"has group_size {text}; served for {name} are {served}")
    return QuantFormat(name, int(text))


def _from_shapes(tensor: _Tensor) -> QuantFormat:
    found = list(_candidates(tensor))
    if len(found) == 1 and found[0].group in AFFINE_GROUPS:
        return found[0]
    could_be = " or ".join(f"{form.name} group {form.group}" for form in found)
    raise tensor.wrong(
        f"could be {could_be or 'of no known format'} by its shapes, and neither its metadata nor "
        "`quantization` in config.json says which"
    )


def _candidates(tensor: _Tensor) -> Iterator[QuantFormat]:
    for name, bits in AFFINE_BITS.items():
        if tensor.group(bits) in _SEEN_GROUPS:
            yield QuantFormat(name, tensor.group(bits))
