"""Rotary parameters as a model's config states them, read and checked (ROP-1)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError

Fields = Mapping[str, object]

# Far beyond every published number, and within what frequencies stay finite for.
LEAST, MOST = 1e-6, 1e15

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Linear:
    """All frequencies divided by `factor` (ROP-3)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Long wavelengths divided by `factor`, short ones kept, a ramp between (ROP-5)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: float


@dataclass(frozen=True, slots=True)
class Yarn:
    """Interpolation by wavelength, and a factor on cos and sin (ROP-6). Peng 2023, 2309.00071."""

    factor: float
    original_context: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """A rope kind and its numbers; equal parameters give equal tables."""

    kind: str  # one of KINDS
    dim: int  # rotated dimensions of a head, the first ones
    theta: float
    scaling: Linear | Llama3 | Yarn | None = None
    max_context: int | None = None  # dynamic: frequencies would change beyond it (ROP-4)


def from_config(config: Fields, head_dim: int) -> RopeParameters:
    """Read the parameters from a config.json, `text_config` before the top level."""
    text = config.get("text_config")
    around = {**config, **_given(text)} if isinstance(text, Mapping) else config
    reader = _Reader(_stated(around), around)
    name = reader.kind()
    dim = int(head_dim * reader.number("partial_rotary_factor", 1.0))
    if dim < 2 or dim % 2 or dim > head_dim:
        raise LoadError(
            f"config.json: partial_rotary_factor rotates {dim} of {head_dim} dimensions; "
            f"it must be an even number from 2 to {head_dim}"
        )
    theta = reader.number("rope_theta", 10000.0)
    if theta <= 1:
        raise LoadError(f"config.json sets rope_theta to {theta}; it must be above 1")
    if name == "dynamic":
        return RopeParameters(name, dim, theta, max_context=reader.context())
    return RopeParameters(name, dim, theta, _scaling(name, reader))


def _given(fields: Fields) -> dict[str, object]:
    """JSON null counts as absent."""
    return {name: value for name, value in fields.items() if value is not None}


def _stated(config: Fields) -> Fields:
    """The object that describes the rope: the newer `rope_parameters`, else `rope_scaling`."""
    place = "rope_parameters"
    found = config.get(place)
    if found is None or found == {}:
        place = "rope_scaling"
        found = config.get(place)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise LoadError(f"config.json sets {place} to {found!r}; it must be an object")
    nested = [name for name, value in found.items() if isinstance(value, Mapping)]
    if nested:
        raise LoadError(
            f"config.json has {place} for layer kinds {', '.join(nested)} and none for "
            "a model of one kind"
        )
    return _given(found)


def _scaling(kind: str, reader: "_Reader") -> Linear | Llama3 | Yarn | None:
    if kind == "linear":
        return Linear(reader.number("factor"))
    if kind == "llama3":
        return _llama3(reader)
    return _yarn(reader) if kind == "yarn" else None


def _llama3(reader: "_Reader") -> Llama3:
    low, high = reader.number("low_freq_factor"), reader.number("high_freq_factor")
    if low >= high:
        raise LoadError(
            f"config.json: rope low_freq_factor {low} must be below high_freq_factor {high}"
        )
    return Llama3(reader.number("factor"), low, high, reader.original_context())


def _yarn(reader: "_Reader") -> Yarn:
    original = reader.original_context()
    factor = reader.optional("factor")
    if factor is None:
        factor = _in_range("factor", reader.context() / original)
    attention_factor = reader.optional("attention_factor")
    if attention_factor is None:
        mscale, all_dim = (reader.optional(name) for name in ("mscale", "mscale_all_dim"))
        if mscale is not None and all_dim is not None:
            attention_factor = _magnitude(factor, mscale) / _magnitude(factor, all_dim)
        else:
            attention_factor = _magnitude(factor, 1.0)
    return Yarn(
        factor,
        original,
        attention_factor,
        beta_fast=reader.optional("beta_fast") or 32.0,
        beta_slow=reader.optional("beta_slow") or 1.0,
        truncate=reader.stated.get("truncate") is not False,
    )


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True, slots=True)
class _Reader:
    """Numbers of a rope: as its own object states them, else as the config around it does."""

    stated: Fields
    around: Fields

    def kind(self) -> str:
        found = self.stated.get("rope_type", self.stated.get("type", "default"))
        if found not in KINDS:
            raise LoadError(
                f"config.json asks for rope type {found!r}; served are {', '.join(KINDS)}"
            )
        return str(found)

    def number(self, name: str, default: float | None = None) -> float:
        """A number in range; without a default it is required."""
        found = self._find(name)
        value = default if found is None else found
        if value is None:
            raise LoadError(f"config.json has no {name} for rope type {self.kind()}")
        return _in_range(name, value)

    def optional(self, name: str) -> float | None:
        """A number in range; None where it is absent or 0, which publishers mean alike."""
        value = self._find(name)
        return None if value is None or value == 0 else _in_range(name, value)

    def _find(self, name: str) -> object:
        return self.stated.get(name, self.around.get(name))

    def context(self) -> int:
        name = "max_position_embeddings"
        return int(_in_range(name, int(self.number(name))))

    def original_context(self) -> float:
        found = self.optional("original_max_position_embeddings")
        return float(self.context()) if found is None else found


def _in_range(name: str, value: object) -> float:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or not LEAST <= float(str(value)) <= MOST:
        raise LoadError(
            f"config.json sets {name} to {value!r}; it must be a number above 0, "
            f"from {LEAST:g} to {MOST:g}"
        )
    return float(str(value))
