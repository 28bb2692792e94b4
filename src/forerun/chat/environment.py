"""The Jinja environment that published chat templates are written for, with limits (TMP-1, TMP-6).

Its semantics are those of Hugging Face's templates. Beyond them, a compiled template calls the
meter: in each turn of a loop, for each call of a function or macro, and for values that can outgrow
their parts.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from forerun.chat.marks import MARKS
from forerun.chat.metering import check_call, check_operation, current, size_of

_ESCAPED = re.compile(f"[^\x00-\x7f{MARKS}]")


class _Generation(Extension):
    """`{% generation %}` marks what a model wrote, for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _TemplateDict:
    """`dict(...)` without the class, whose attributes lead elsewhere."""

    def __call__(self, *args: Iterable[object], **kwargs: object) -> object:
        return dict(*args, **kwargs)


class _TemplateNamespace(Namespace):
    """`namespace(...)` that holds no names Python keeps for itself."""

    def __init__(*args: object, **kwargs: object) -> None:  # so that a value may be named `self`
        this, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(this, values)

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _concat(pieces: Iterable[str]) -> str:
    """Joins what a block or macro wrote."""
    texts = list(pieces)
    current().made(sum(map(len, texts)))
    return "".join(texts)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Rendering them needs a meter (`metering.metering`)."""

    concat = staticmethod(_concat)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_spelled,
        )
        self.filters = {name: _metered(name, made) for name, made in self.filters.items()}
        self.filters["tojson"] = _tojson
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace

    def tick(self) -> None:
        current().tick()

    def joined(self, *values: object) -> str:
        """The `~` operator."""
        texts = [str(_spelled(value)) for value in values]
        return _concat(texts)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        check_operation(operator, left, right)
        result: object = super().call_binop(context, operator, left, right)
        return result

    def call(
        self, context: Context, called: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        name, subject = getattr(called, "__name__", ""), _bound_to(called)
        if name == "join" and isinstance(subject, str):
            args = tuple(_listed(arg) for arg in args)
        check_call(name, subject, [*args, *kwargs.values()])
        result: object = super().call(context, called, *args, **kwargs)
        current().made(size_of(result))
        return result


class _Metering(NodeTransformer):
    """Puts the calls to the meter into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno)
        node.body = [tick, *node.body]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)


def add_metering(tree: nodes.Template, environment: ChatEnvironment) -> nodes.Template:
    """`tree`, changed so that rendering it calls the meter."""
    _Metering().visit(tree)
    tree.set_environment(environment)
    return tree


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    called = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(called, arguments, [], None, None, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: the name begins with an underscore")


def _bound_to(called: object) -> object:
    """The object whose method is called; the sandbox wraps `str.format`."""
    return getattr(getattr(called, "__wrapped__", called), "__self__", None)


def _listed(items: object) -> object:
    """Generators are used up by being counted."""
    if isinstance(items, Iterable) and not isinstance(items, str | list | tuple):
        return list(items)
    return items


def _spelled(value: object) -> object:
    """A value about to become text."""
    if isinstance(value, list | tuple | dict):
        current().spelled(value)
    return value


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as templates expect it: characters as they are, no HTML escapes.

    With `ensure_ascii`, marks stay characters; as escapes they could not be cut away later.
    """
    _spelled(value)
    check_call("indent", "", [indent])
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return _ESCAPED.sub(lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _metered(name: str, made: Callable[..., object]) -> Callable[..., object]:
    """A filter that counts what it makes. Some take a context or environment first."""
    skipped = 1 if hasattr(made, "jinja_pass_arg") else 0

    @wraps(made)
    def call(*args: object, **kwargs: object) -> object:
        given = list(args)
        if name == "join":
            given[skipped] = _listed(given[skipped])
        subject, *arguments = given[skipped:]
        check_call(
            name, _spelled(subject) if name == "string" else subject, [*arguments, *kwargs.values()]
        )
        result = made(*given, **kwargs)
        current().made(size_of(result))
        return result

    return call
