"""The Jinja environment that published chat templates are written for, with limits (TMP-1, TMP-6).

Its semantics are those of Hugging Face's templates. Beyond them, a compiled template calls the
meter: in each turn of a loop, for each call, test and comparison, and for values that can outgrow
their parts.
"""

import json
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from functools import wraps
from typing import NoReturn, cast

from jinja2 import TemplateError, TemplateSyntaxError, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateAssertionError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from forerun.chat.access import shows, text_format
from forerun.chat.growth import PIECE_BYTES, check_call, check_json, check_operation
from forerun.chat.marks import MARKS
from forerun.chat.metering import INTEGER_BITS, current

_ESCAPED = re.compile(f"[^\x00-\x7f{MARKS}]+")

# They write HTML and listings, in time that grows faster than the text.
_REFUSED_FILTERS = ("pprint", "striptags", "urlize", "xmlattr")
_OPERATORS = frozenset(("+", "-", "*", "/", "//", "%", "**"))


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

    def __repr__(self) -> str:
        return "<namespace>"  # what it holds may hold it


def _concat(pieces: Iterable[str]) -> str:
    """Joins what a block or macro wrote."""
    texts = list(pieces)
    current().made(sum(map(len, texts)))
    return "".join(texts)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Rendering them needs a meter (`metering.metering`)."""

    concat = staticmethod(_concat)
    intercepted_binops = _OPERATORS

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            finalize=_finalized,
            optimized=False,  # evaluating constants early would write their values into the code
        )
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters = {name: _metered(name, made) for name, made in self.filters.items()}
        self.filters["tojson"] = _tojson
        self.tests = {
            name: _ticking(cast("Callable[..., object]", test)) for name, test in self.tests.items()
        }
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        try:
            return super()._parse(source, name, filename)
        except ValueError as error:  # Python reads no number of more digits
            raise TemplateSyntaxError(str(error), 1) from error

    def tick(self) -> bool:
        """True, so that it may stand before a condition."""
        current().tick()
        return True

    def made(self, value: object) -> object:
        """A value that the template itself puts together."""
        current().kept(value)
        return value

    def joined(self, *values: object) -> str:
        """The `~` operator."""
        texts = [str(_spelled(value)) for value in values]
        return _concat(texts)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        return shows(obj, attr) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        return text_format(value, self)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        check_operation(operator, left, right)
        result: object = super().call_binop(context, operator, left, right)
        if operator == "+" and isinstance(result, list | tuple):
            current().appended(left, right, result)
        elif isinstance(result, int | list | tuple):
            current().kept(result)
        return result

    def call(
        self, context: Context, called: Callable[..., object], /, *args: object, **kwargs: object
    ) -> object:
        name, subject = getattr(called, "__name__", ""), getattr(called, "__self__", None)
        if subject is self:
            return called(*args)
        if called is context.get("strftime_now"):
            name = "strftime_now"
        if name == "join" and isinstance(subject, str):
            name, args = "join by method", tuple(map(_listed, args))
        arguments = [*args, *kwargs.values()]
        if any(isinstance(argument, list | tuple | dict) for argument in arguments):
            current().kept(arguments)  # a macro sees them as one value
        check_call(name, subject, arguments)
        result: object = super().call(context, called, *args, **kwargs)
        current().kept(result)
        return result


class _Metering(NodeTransformer):
    """Puts the calls to the meter into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call("tick", [], node.lineno), lineno=node.lineno)
        node.body = [tick, *node.body]
        if node.test is not None:
            node.test = _after_tick(node.test)
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        return _after_tick(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", node.nodes, node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._display(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._display(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._display(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """A slice is a copy."""
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            return _call("made", [node], node.lineno)
        return node

    def _display(self, node: nodes.Expr) -> nodes.Node:
        """Of constants alone it is as large as the template's source."""
        if _constant(node):
            return node
        self.generic_visit(node)
        return _call("made", [node], node.lineno)


def add_metering(tree: nodes.Template, environment: ChatEnvironment) -> nodes.Template:
    """`tree`, changed so that rendering it calls the meter."""
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, int) and constant.value.bit_length() > INTEGER_BITS:
            raise TemplateAssertionError(
                f"a number of more than {INTEGER_BITS} bits", constant.lineno
            )
    _Metering().visit(tree)
    tree.set_environment(environment)
    return tree


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    called = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(called, arguments, [], None, None, lineno=line)


def _after_tick(condition: nodes.Node) -> nodes.Expr:
    line = condition.lineno
    return nodes.And(_call("tick", [], line), condition, lineno=line)


def _constant(node: nodes.Node) -> bool:
    children = node.iter_child_nodes()
    return isinstance(node, nodes.Const) or (
        isinstance(node, nodes.List | nodes.Tuple | nodes.Dict | nodes.Pair)
        and all(map(_constant, children))
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: the name begins with an underscore")


def _listed(items: object) -> object:
    """Generators are used up by being counted."""
    if isinstance(items, Iterable) and not isinstance(items, str | list | tuple):
        return list(items)
    return items


def _spelled(value: object) -> object:
    """A value about to become text."""
    if isinstance(value, list | tuple | dict | KeysView | ValuesView | ItemsView):
        current().spelled(value)
    return value


@pass_context  # so that constants are not evaluated early here either
def _finalized(context: Context, value: object) -> object:
    del context
    return _spelled(value)


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
    check_json(value, indent, separators)
    encoder = json.JSONEncoder(
        ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        text = encoder.encode(value)
    else:  # which Python writes in pieces, each with an indent as deep as it stands
        text = "".join(map(_piece, encoder.iterencode(value)))
    current().made(len(text))
    return _ESCAPED.sub(_escaped, text) if ensure_ascii else text


def _piece(text: str) -> str:
    current().spent(PIECE_BYTES + len(text))
    return text


def _escaped(match: re.Match[str]) -> str:
    return _piece(json.dumps(match[0])[1:-1])


def _ticking(test: Callable[..., object]) -> Callable[..., object]:
    """A test that tells the time: `select` calls it in a loop of its own."""

    @wraps(test)
    def call(*args: object, **kwargs: object) -> object:
        current().tick()
        return test(*args, **kwargs)

    return call


def _metered(name: str, made: Callable[..., object]) -> Callable[..., object]:
    """A filter that counts what it makes. Some take a context or environment first."""
    skipped = 1 if hasattr(made, "jinja_pass_arg") else 0

    @wraps(made)
    def call(*args: object, **kwargs: object) -> object:
        given = list(args)
        if name == "join":
            given[skipped] = _listed(given[skipped])
        subject, *arguments = given[skipped:]
        check_call(name, subject, [*arguments, *kwargs.values()])
        try:
            return _counted(subject, made(*given, **kwargs))
        except AssertionError as error:  # how Jinja's own filters refuse an argument
            raise TemplateError(str(error)) from error

    return call


def _counted(subject: object, result: object) -> object:
    """What a filter gave back; of what it gives one by one, each."""
    if isinstance(result, Iterator):
        return map(_item, result)
    if isinstance(result, list) and not isinstance(subject, str | list | tuple | dict):
        current().spent(PIECE_BYTES * len(result))  # its items were made only now
    current().kept(result)
    return result


def _item(value: object) -> object:
    if isinstance(value, list | tuple | dict):
        current().kept(value)
    else:
        current().tick()
    return value
