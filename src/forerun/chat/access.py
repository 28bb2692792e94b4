"""Which attributes of values a template may read, and `str.format` within limits (TMP-1, TMP-6).

Plain values show what is listed here and nothing else: what published templates use and what
cannot hang the process. Numbers show nothing; their methods make numbers and bytes of any size.
"""

from collections.abc import Callable
from string import Formatter
from types import BuiltinMethodType

from jinja2 import Environment
from jinja2.runtime import BlockReference, LoopContext, Macro, TemplateReference
from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Cycler, Joiner, Namespace

from forerun.chat.growth import check_field

_TEXT = """capitalize casefold center count endswith expandtabs find index isalnum isalpha isascii
isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust
lower lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit
rstrip split splitlines startswith strip swapcase title upper zfill"""

_SHOWN: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(_TEXT.split())),
    (dict, frozenset(("copy", "get", "items", "keys", "values"))),
    (list, frozenset(("copy", "count", "index"))),
    (tuple, frozenset(("count", "grouper", "index", "list"))),  # the middle two: of `groupby`
)
_OF_JINJA = (BlockReference, Cycler, Joiner, LoopContext, Macro, Namespace, TemplateReference)


def shows(value: object, attribute: str) -> bool:
    """Whether templates may read that attribute."""
    for kind, names in _SHOWN:
        if isinstance(value, kind):
            return attribute in names
    return isinstance(value, _OF_JINJA) and not attribute.startswith("_")


def text_format(value: object, environment: Environment) -> Callable[..., str] | None:
    """A metered `format` in place of a text's own; None for any other value."""
    if not isinstance(value, BuiltinMethodType) or value.__name__ != "format":
        return None
    text = value.__self__
    if not isinstance(text, str):
        return None
    formatter = _MeteredFormatter(environment)
    return lambda *args, **kwargs: formatter.vformat(text, args, kwargs)


class _MeteredFormatter(SandboxedFormatter):
    """Counts each field with the format that fields within it have made up."""

    def format_field(self, value: object, format_spec: str) -> str:
        check_field(value, format_spec)
        return str(Formatter.format_field(self, value, format_spec))
