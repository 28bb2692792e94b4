"""How the models of a family speak, told by architecture (spec 07 CAP-1, CAP-2).

Families that no template can be mistaken for need no entry: their templates tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.base.json_types import JsonValue
from forerun.chat.dialects.registry import THINKING, capabilities, thinks
from forerun.chat.sources import ChatTemplates

_XML_CALLS: Final = "<function="
_LATER_TEMPLATES: Final = ("resolved_reasoning_effort", "preserve_thinking")


@dataclass(frozen=True, slots=True)
class Family:
    """What a manifest says of a model where its Modelfile says nothing.

    parser    what its answers are read as, "" where its templates tell
    renderer  what Ollama's clients are told that its prompts are written by
    thinking  whether all of them can think, whatever a template shows
    """

    parser: str = ""
    renderer: str = ""
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Speech:
    """What a manifest records of how a model is spoken with."""

    parser: str
    renderer: str
    capabilities: tuple[str, ...]


def family_of(config: Mapping[str, JsonValue], templates: ChatTemplates) -> Family:
    """The family of a checkpoint's config.json. The first that matches: every name of Qwen 3.5 and
    3-Next holds that of Qwen 3 (06 QWN-18)."""
    named = _names(config)
    if any(part in name for name in named for part in ("qwen35", "qwen3next")):
        later = templates.mention(*_LATER_TEMPLATES)
        return Family("qwen3.5", "qwen3.8" if later else "qwen3.5", thinking=True)
    if any("qwen3" in name for name in named):
        coder = _XML_CALLS in templates.literals and not thinks(templates)
        name = "qwen3-coder" if coder else "qwen3"
        return Family(name, name)
    return Family()


def speech_of(
    config: Mapping[str, JsonValue], templates: ChatTemplates, *, parser: str, renderer: str
) -> Speech:
    """What is recorded of a new model.

    A parser that a Modelfile names is its word for thinking. The family's own is not, which `show`
    writes into every Modelfile: Qwen 3 comes as models that think and as models that do not.

    parser, renderer  what the Modelfile says, "" for nothing

    Raises RequestError for an unknown parser.
    """
    family = family_of(config, templates)
    able = capabilities(templates, parser or family.parser)
    stated = parser not in ("", family.parser)
    if not (stated or family.thinking or thinks(templates)):
        able = tuple(each for each in able if each != THINKING)
    return Speech(parser or family.parser, renderer or family.renderer, able)


def _names(config: Mapping[str, JsonValue]) -> list[str]:
    """Architecture and model type, without case and punctuation."""
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    stated = [name for name in (first, config.get("model_type")) if isinstance(name, str)]
    return ["".join(filter(str.isalnum, name.lower())) for name in stated]
