"""One chat template: compiled once, rendered by many threads (spec 06 TMP-1, TMP-6)."""

from collections.abc import Mapping
from datetime import datetime

from jinja2 import Template as Compiled
from jinja2 import TemplateError, TemplateSyntaxError, nodes

from forerun.base.errors import LoadError, RequestError
from forerun.base.json_types import JsonValue
from forerun.chat.environment import ChatEnvironment, add_metering
from forerun.chat.metering import RenderLimitError, RenderLimits, metering

# What evaluating a template can raise; anything else is a bug of ours.
TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class Template:
    """A Jinja template of published models.

    `literals` is all text it writes itself and all its string constants, joined by NUL: a token
    that occurs there is one the template writes (TOK-2). `names` are the variables it uses.
    """

    source: str
    literals: str
    names: frozenset[str]

    def __init__(self, source: str, limits: RenderLimits | None = None) -> None:
        """Compile `source`. Raises LoadError with the line that is wrong."""
        self.source = source
        self._limits = limits or RenderLimits()
        environment = ChatEnvironment()
        with metering(self._limits):
            try:
                tree = environment.parse(source)
                self.literals = _literals(tree)
                self.names = frozenset(name.name for name in tree.find_all(nodes.Name))
                code = environment.compile(add_metering(tree, environment))
            except TemplateSyntaxError as error:
                raise LoadError(
                    f"the chat template is no valid Jinja, line {error.lineno}: {error.message}; "
                    "correct it or give another as TEMPLATE in a Modelfile"
                ) from error
            except RecursionError as error:
                raise LoadError("the chat template is nested too deeply") from error
        self._compiled = Compiled.from_code(environment, code, environment.make_globals(None))

    def render(self, variables: Mapping[str, JsonValue], now: datetime) -> str:
        """The template's text; `now` is what `strftime_now` tells.

        Raises RequestError with the template's own message, or the limit it reached.
        """
        pieces: list[str] = []
        with metering(self._limits) as meter:
            try:
                for piece in self._compiled.generate(
                    {**variables, "strftime_now": lambda format: now.strftime(format)}
                ):
                    meter.written(piece)
                    pieces.append(piece)
            except RenderLimitError as error:
                raise RequestError(f"the model's chat template was stopped: {error}") from error
            except TEMPLATE_ERRORS as error:
                raise RequestError(
                    f"the model's chat template refuses the request: {_one_line(error)}"
                ) from error
        return "".join(pieces)


def _literals(tree: nodes.Template) -> str:
    written = {data.data for data in tree.find_all(nodes.TemplateData)}
    constants = {c.value for c in tree.find_all(nodes.Const) if isinstance(c.value, str)}
    return "\0".join(sorted(written | constants))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
