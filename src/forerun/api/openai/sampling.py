"""The fields of a request that say how to sample, to options (spec 08 OAI-2)."""

from msgspec.structs import asdict

from forerun.api.bodies import WireStruct
from forerun.base.errors import RequestError
from forerun.base.options import INT64_MAX, OptionValue, check_asked
from forerun.base.shown import shown

DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
EFFORTS: dict[str, bool | str] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "ultra": "max",
    "max": "max",
}


class SamplingFields(WireStruct):
    """Fields that have the names of options, and their ranges. `num_ctx` and `draft` are ours.

    `draft_layers` is read to be refused: it would be ignored as an unknown field.
    """

    temperature: object = None
    top_p: object = None
    seed: object = None
    stop: object = None
    frequency_penalty: object = None
    presence_penalty: object = None
    logit_bias: object = None
    num_ctx: object = None
    draft: object = None
    draft_layers: object = None


_FIELDS = SamplingFields.__struct_fields__


def read_sampling(fields: SamplingFields, limits: dict[str, object]) -> dict[str, OptionValue]:
    """Checked options of a request.

    `limits` are the fields that bound the answer's tokens, the one that wins first. Temperature
    and top_p are 1.0 unless the request says otherwise, whatever the model's Modelfile says. What
    has no field here, top_k among it, is as the Modelfile says, or else as the table of options
    does: top_k 40. Raises RequestError naming field, value and range.
    """
    given = asdict(fields)
    stated = {name: given[name] for name in _FIELDS if given[name] is not None}
    counts = [_count(name, value) for name, value in limits.items() if value is not None]
    budget = {"num_predict": counts[0]} if counts else {}
    return check_asked({**DEFAULTS, **stated, **budget})


def read_effort(effort: object, field: str = "reasoning_effort") -> bool | str | None:
    """What `think` is for a reasoning effort; None if nothing is said."""
    if effort is None:
        return None
    think = EFFORTS.get(effort.lower()) if isinstance(effort, str) else None
    if think is None:
        raise RequestError(f"{field} is {shown(effort)}; it must be one of {', '.join(EFFORTS)}")
    return think


def check_single(field: str, count: int | None) -> None:
    """RequestError where more than one answer is asked for."""
    if count not in (None, 1):
        raise RequestError(f"{field} is {count}; it must be 1: ask again for another answer")


def _count(name: str, value: object) -> int:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if not 0 <= number <= INT64_MAX or number % 1:
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number, 0 or more")
    return int(number)
