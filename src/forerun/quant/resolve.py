"""Which format a quantised tensor has: the first source that answers (LIN-2)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.quant.formats import BITS, GROUPS, QuantFormat

_SEEN_GROUPS = (16, *GROUPS)  # what shapes are compared with; 16 is a group of other formats


def resolve(
    name: str,
    columns: tuple[int, int],
    *,
    metadata: Mapping[str, str],
    config: Mapping[str, object],
) -> QuantFormat:
    """The format of weight `name`. Raises LoadError naming the tensor.

    columns   of its words and of its scale
    metadata  of the tensor's blob: `quant_type`, `group_size`
    config    the model's config; its `quantization` speaks for all tensors or for one by path

    What is stated is checked against the shapes and never replaced by what they suggest.
    """
    tensor = _Tensor(name, *columns)
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

    def group(self, bits: int) -> int:
        """Columns a scale, if codes have that many bits; 0 where that is no whole number."""
        columns = self.words * 32 // bits
        return 0 if self.groups == 0 or columns % self.groups else columns // self.groups

    def wrong(self, what: str) -> LoadError:
        return LoadError(f"quantised tensor {self.name} {what}; import the model again")


def _from_metadata(tensor: _Tensor, metadata: Mapping[str, str]) -> QuantFormat | None:
    kind = metadata.get("quant_type")
    if kind is None:
        return None
    if kind not in BITS:
        raise tensor.wrong(f"has quant_type {kind!r}; served are {', '.join(BITS)}")
    return _format(tensor, BITS[kind], metadata.get("group_size"))


def _from_config(tensor: _Tensor, config: Mapping[str, object]) -> QuantFormat | None:
    """Entries for one layer stand under its path, beside the fields that speak for all."""
    general = config.get("quantization")
    if general is None:
        return None
    path = tensor.name.removesuffix(".weight")
    own = general.get(path, {}) if isinstance(general, Mapping) else general
    if not isinstance(general, Mapping) or not isinstance(own, Mapping):
        raise tensor.wrong(f"has scales, and config.json states {own!r} for its quantization")
    entry = {**general, **own}
    if "bits" not in entry:
        return None
    mode, bits = entry.get("mode", "affine"), entry["bits"]
    if mode != "affine":
        raise tensor.wrong(f"has quantization mode {mode!r}; served is affine")
    if not isinstance(bits, int) or bits not in BITS.values():
        raise tensor.wrong(f"has {bits!r} bits; served are 4 and 8")
    return _format(tensor, bits, entry.get("group_size"))


def _format(tensor: _Tensor, bits: int, group_size: object) -> QuantFormat:
    """A stated format; the group follows from the shapes where it is left out."""
    text = str(tensor.group(bits) if group_size is None else group_size)
    if text not in {str(group) for group in GROUPS}:
        raise tensor.wrong(f"has group_size {text}; served are {', '.join(map(str, GROUPS))}")
    return QuantFormat(_name(bits), int(text))


def _from_shapes(tensor: _Tensor) -> QuantFormat:
    found = list(_candidates(tensor))
    if len(found) == 1 and found[0].group in GROUPS:
        return found[0]
    could_be = " or ".join(f"{form.name} group {form.group}" for form in found)
    raise tensor.wrong(
        f"could be {could_be or 'of no known format'} by its shapes, and neither its metadata nor "
        "`quantization` in config.json says which"
    )


def _candidates(tensor: _Tensor) -> Iterator[QuantFormat]:
    for name, bits in BITS.items():
        if tensor.group(bits) in _SEEN_GROUPS:
            yield QuantFormat(name, tensor.group(bits))


def _name(bits: int) -> str:
    return next(name for name, known in BITS.items() if known == bits)
