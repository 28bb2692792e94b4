"""What a policy goes by, read from a checkpoint's config.json."""

from forerun.base.json_types import JsonObject, JsonValue
from forerun.importer.policy.default import Asked

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def asked_of(config: JsonObject, kind: str, *, draft: bool = False, tied: bool = False) -> Asked:
    """A wish for `kind`. A field that is missing counts as zero: the model's reader refuses it."""
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else {}
    fields = {**config, **text}
    return Asked(
        kind=kind,
        architecture=_architecture(config),
        layers=_count(fields.get("num_hidden_layers")),
        experts=next((n for n in map(_count, map(fields.get, _EXPERTS)) if n), 0),
        draft=draft,
        tied=tied,
    )


def _architecture(config: JsonObject) -> str:
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else config.get("model_type")
    return first if isinstance(first, str) else ""


def _count(value: JsonValue) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
