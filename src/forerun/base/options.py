"""The options of a request: names, types, ranges and defaults, in one table (spec 08 OPT).

Modelfile parameters, command-line `/set`, HTTP bodies and the Python API all check against it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from forerun.base.errors import RequestError
from forerun.base.shown import shown

Bias = dict[int, float]
OptionValue = int | float | bool | str | list[str] | Bias | None
Kind = Literal["int", "float", "bool", "strings", "bias", "name", "layers"]

MAX_BIAS_ENTRIES = 1024  # spec 04 OPT-6
MAX_STRINGS, MAX_STRING = 64, 1000  # stop strings, and characters of one
MAX_BIAS = 100.0
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. A `None` bound is open; `inert` ones are accepted and do nothing."""

    name: str
    kind: Kind
    default: OptionValue
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()  # of a name
    load_time: bool = False
    modelfile_only: bool = False  # a fact of the model, which no request can change
    inert: bool = False

    @property
    def allowed(self) -> str:
        """The range in words, for messages."""
        words = {
            "int": "a whole number",
            "float": "a finite number",
            "bool": "true or false",
            "strings": f"a string of 1 to {MAX_STRING} characters, or up to {MAX_STRINGS} of them",
            "bias": "a map from token id to a number, as text 5:-100,7:1.5,",
            "name": f"one of {', '.join(self.choices)}",
            "layers": "whole numbers with commas between, such as 2,15,27",
        }[self.kind]
        if self.low is not None and self.high is not None and self.high < INT64_MAX:
            return f"{words} from {self.low:g} to {self.high:g}"
        if self.low is not None and self.low > -INT64_MAX:
            return f"{words}, {self.low:g} or more"
        return words


_ROWS = [
    Option("temperature", "float", 0.8, 0),
    Option("top_k", "int", 40, 0, INT64_MAX),
    Option("top_p", "float", 0.9, 0, 1),
    Option("min_p", "float", 0.0, 0, 1),
    Option("repeat_last_n", "int", 64, -1, INT64_MAX),
    Option("repeat_penalty", "float", 1.0, 0),  # 1.0 = none: spec 04 OPT-3 says why
    Option("presence_penalty", "float", 0.0, -2, 2),
    Option("frequency_penalty", "float", 0.0, -2, 2),
    Option("logit_bias", "bias", None, -MAX_BIAS, MAX_BIAS),
    Option("seed", "int", -1, -(2**63), INT64_MAX),
    Option("num_predict", "int", -1, -INT64_MAX, INT64_MAX),
    Option("stop", "strings", None),
    Option("draft", "name", "auto", choices=("auto", "model", "lookup", "off")),
    Option("draft_layers", "layers", None, load_time=True, modelfile_only=True),
    Option("num_ctx", "int", None, 4, INT64_MAX, load_time=True),
    Option("num_thread", "int", 0, 0, 1024, load_time=True),
    Option("num_gpu", "int", -1, -1, INT64_MAX, load_time=True),
    Option("num_batch", "int", None, 1, INT64_MAX, load_time=True, inert=True),
    Option("main_gpu", "int", None, 0, INT64_MAX, load_time=True, inert=True),
    Option("use_mmap", "bool", None, load_time=True, inert=True),
    Option("num_keep", "int", 4, -1, INT64_MAX, inert=True),
    Option("typical_p", "float", 1.0, 0, 1, inert=True),
    Option("draft_num_predict", "int", None, 0, INT64_MAX, inert=True),
]
OPTIONS: dict[str, Option] = {row.name: row for row in _ROWS}
REQUEST_OPTIONS = [row.name for row in _ROWS if not row.modelfile_only]


def check_option(name: str, value: object) -> OptionValue:
    """`value` in the option's own type; None means absent.

    Raises RequestError naming option, value and range.
    """
    option = OPTIONS.get(name)
    if option is None:
        raise _unknown(name, OPTIONS)
    if value is None:
        return None
    checked = _typed(option, value)
    if checked is None or not _within(option, checked):
        raise RequestError(f"option {name} is {shown(value)}; it must be {option.allowed}")
    return checked


def parse_option(name: str, text: str) -> OptionValue:
    """The value of an option written as text, as in a Modelfile's PARAMETER or the REPL's /set."""
    option = OPTIONS.get(name)
    if option is None or option.kind in ("strings", "name", "layers"):
        return check_option(name, text)
    value: object = text
    try:
        if option.kind == "int":
            value = int(text)
        elif option.kind == "float":
            value = float(text)
        elif option.kind == "bool":
            value = {"true": True, "false": False}[text.lower()]
        else:
            pairs = (pair.split(":") for pair in text.split(","))
            value = {token: float(bias) for token, bias in pairs}
    except (ValueError, KeyError):
        value = text
    return check_option(name, value)


def check_options(options: dict[str, object]) -> dict[str, OptionValue]:
    """Every option checked; absent (None) ones left out."""
    checked = {name: check_option(name, value) for name, value in options.items()}
    return {name: value for name, value in checked.items() if value is not None}


def check_asked(options: dict[str, object]) -> dict[str, OptionValue]:
    """`check_options` for what a request says: RequestError also for a model's own parameters."""
    check_names(name for name, value in options.items() if value is not None or name not in OPTIONS)
    return check_options(options)


def check_names(names: Iterable[str]) -> None:
    """RequestError for the first name that a request cannot have.

    It lists what there is, or says how a Modelfile sets what only a Modelfile can.
    """
    for name in names:
        if name not in OPTIONS:
            raise _unknown(name, REQUEST_OPTIONS)
        if OPTIONS[name].modelfile_only:
            raise RequestError(
                f"option {name} belongs in the model's Modelfile, as a line PARAMETER {name} VALUE;"
                " a request or a conversation cannot set it"
            )


def _unknown(name: str, known: Iterable[str]) -> RequestError:
    return RequestError(f"unknown option {name!r}; the options are {', '.join(sorted(known))}")


def _typed(option: Option, value: object) -> OptionValue:
    if option.kind == "bool":
        return value if isinstance(value, bool) else None
    if option.kind in ("name", "layers"):
        return value if isinstance(value, str) and _is_word(option, value) else None
    if option.kind == "strings":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or len(texts) > MAX_STRINGS:
            return None
        whole = all(isinstance(text, str) and 1 <= len(text) <= MAX_STRING for text in texts)
        return list(texts) if whole else None
    if option.kind == "bias":
        return _bias(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if option.kind == "int":
        return int(value) if int(value) == value else None
    try:
        return float(value)
    except OverflowError:
        return None


def _is_word(option: Option, text: str) -> bool:
    if option.kind == "name":
        return text in option.choices
    return all(part.isascii() and part.isdigit() and len(part) < 6 for part in text.split(","))


def _bias(value: object) -> Bias | None:
    """Keys may be strings of digits, as OpenAI's clients send them."""
    if not isinstance(value, dict) or len(value) > MAX_BIAS_ENTRIES:
        return None
    bias: Bias = {}
    for token, amount in value.items():
        digits = isinstance(token, str) and token.isascii() and token.isdigit()
        if isinstance(token, bool) or not (digits or isinstance(token, int)) or int(token) < 0:
            return None
        if isinstance(amount, bool) or not isinstance(amount, int | float):
            return None
        if not -MAX_BIAS <= amount <= MAX_BIAS:
            return None
        bias[int(token)] = float(amount)
    return bias


def _within(option: Option, value: OptionValue) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    low_ok = option.low is None or value >= option.low
    return low_ok and (option.high is None or value <= option.high)
