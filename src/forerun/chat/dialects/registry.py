"""Which dialect a model speaks, and what it can therefore do (spec 08 PAR-3, API-17)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.chat.dialects import gemma, llama3, tool_call_tags
from forerun.chat.dialects.blocks import Block, BlockParser
from forerun.chat.dialects.literals import ESCAPE
from forerun.chat.dialects.llama3 import Llama3Parser
from forerun.chat.dialects.pieces import CallParser
from forerun.chat.dialects.thinking import CLOSE, OPEN, THINKING_TAGS
from forerun.chat.dialects.tools import Tools
from forerun.chat.sources import ChatTemplates

COMPLETION, TOOLS, THINKING = "completion", "tools", "thinking"


@dataclass(frozen=True, slots=True)
class CallNotation:
    """One way to write tool calls.

    tags       what may be tokens of their own, which then have to show in the text
    taught_by  whether a template with these literals teaches it
    """

    tags: tuple[str, ...]
    taught_by: Callable[[str], bool]
    parser: Callable[[Tools], CallParser]


def _in_blocks(blocks: Iterable[Block], *more_tags: str) -> CallNotation:
    kept = tuple(blocks)
    tags = [tag for block in kept for tag in (block.opening, block.closing)]
    return CallNotation(
        tags=(*tags, *more_tags),
        taught_by=lambda literals: any(block.opening in literals for block in kept),
        parser=lambda tools: BlockParser(kept, tools),
    )


_TOOL_CALL = _in_blocks([tool_call_tags.TOOL_CALL])
_FUNCTION_GEMMA = _in_blocks(gemma.FUNCTION_GEMMA, ESCAPE)
_FENCED = _in_blocks(gemma.FENCED)
_LLAMA3 = CallNotation(
    tags=(llama3.PYTHON_TAG,),
    taught_by=lambda literals: '{"name": ' in literals and '"parameters": ' in literals,
    parser=Llama3Parser,
)
_NOTATIONS = (_TOOL_CALL, _FUNCTION_GEMMA, _FENCED, _LLAMA3)  # the last one's mark is the weakest


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a model writes that is not plain text.

    closable  whether it answers without thinking behind an empty block of thinking (PAR-2)
    """

    thinking: bool = False
    calls: CallNotation | None = None
    closable: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        calls = () if self.calls is None else self.calls.tags
        return (*THINKING_TAGS, *calls) if self.thinking else calls


DIALECTS = {
    "think": Dialect(thinking=True),
    "hermes": Dialect(calls=_TOOL_CALL),
    "qwen3": Dialect(thinking=True, calls=_TOOL_CALL),
    "qwen3.5": Dialect(thinking=True, calls=_TOOL_CALL, closable=True),
    "qwen3-coder": Dialect(calls=_TOOL_CALL),
    "llama3": Dialect(calls=_LLAMA3),
    "gemma3": Dialect(calls=_FENCED),
    "functiongemma": Dialect(calls=_FUNCTION_GEMMA),
}


def dialect_of(templates: ChatTemplates, parser: str = "") -> Dialect:
    """The dialect named by `parser`, a Modelfile's PARSER, else the one the templates write.

    Raises RequestError for a name that is none.
    """
    if parser:
        if parser not in DIALECTS:
            raise RequestError(
                f"PARSER is {shown(parser)}; it must be one of {', '.join(DIALECTS)}"
            )
        return DIALECTS[parser]
    taught = (each for each in _NOTATIONS if each.taught_by(templates.literals))
    return Dialect(thinking=thinks(templates), calls=next(taught, None))


def thinks(templates: ChatTemplates) -> bool:
    """Whether the templates are those of a model that thinks: they write the tag, or cut thinking
    out of earlier answers that hold it (07 CAP-1)."""
    cuts = templates.split_at(CLOSE) and not templates.mention("reasoning_content")
    return OPEN in templates.literals or cuts


def capabilities(templates: ChatTemplates, parser: str = "") -> tuple[str, ...]:
    """What a model can do with these templates, as its manifest records it.

    Tools take both a template that shows them to the model and a notation for its calls.
    """
    dialect = dialect_of(templates, parser)
    tools = dialect.calls is not None and templates.show_tools
    named = ((COMPLETION, True), (TOOLS, tools), (THINKING, dialect.thinking))
    return tuple(name for name, able in named if able)
