"""A model's parameters: options that its Modelfile sets (spec 07 MF-2, 08 OPT)."""

from collections.abc import Mapping
from typing import Final

from forerun.base.errors import RequestError, StoreError
from forerun.base.json_types import JsonValue
from forerun.base.options import OPTIONS, OptionValue, check_options, parse_option
from forerun.store.fields import Fields
from forerun.store.manifest import encode_json

RETIRED: Final = {
    *("penalize_newline", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mlock"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
}


def with_parameter(
    parameters: Mapping[str, OptionValue], name: str, text: str
) -> dict[str, OptionValue]:
    """`parameters` and one more, given as text; lists grow, other values give way.

    Raises RequestError naming the parameter and what it may be.
    """
    value = parse_option(name, text)
    earlier = parameters.get(name)
    if OPTIONS[name].kind == "strings" and isinstance(earlier, list) and isinstance(value, list):
        value = earlier + value
    return {**parameters, name: value}


def encode_parameters(parameters: Mapping[str, OptionValue]) -> bytes:
    """The bytes of a parameters layer."""
    return encode_json({name: _document(value) for name, value in parameters.items()})


def decode_parameters(data: bytes, where: str) -> dict[str, OptionValue]:
    """The parameters of a layer, checked against the table of options."""
    try:
        return check_options(dict(Fields.parse(data, where).values))
    except RequestError as reason:
        raise StoreError(f"{where}: {reason}") from None


def parameter_texts(value: OptionValue) -> list[str]:
    """`value` as the texts of PARAMETER lines, one for each item of a list."""
    if isinstance(value, list):
        return list(value)
    if isinstance(value, dict):
        return [",".join(f"{token}:{bias}" for token, bias in value.items())]
    if isinstance(value, bool):
        return [str(value).lower()]
    return [] if value is None else [str(value)]


def _document(value: OptionValue) -> JsonValue:
    if isinstance(value, list):
        return list(value)
    if isinstance(value, dict):
        return {str(token): bias for token, bias in value.items()}
    return value
