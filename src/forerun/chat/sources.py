"""Which of a model's chat templates a request is rendered with (spec 06 TMP-5)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError, RequestError, UnsupportedError
from forerun.chat.plain import JsonValue
from forerun.chat.template import Template

# What Go's templates write and Jinja's do not: {{ .Prompt }}, {{ if .System }}, {{ end }}.
_GO = re.compile(
    r"\{\{-?\s*(?:[.$]|/\*|(?:end|else)\s*-?\}\}|(?:if|with|else)\s+[\w.$(]"
    r"|(?:range|block|define|template)\s+[.$\"])"
)

TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
DEFAULT = "default"
TOOL_USE = "tool_use"


@dataclass(frozen=True, slots=True)
class TemplateSources:
    """The places a template can come from, in the order they are asked; blank ones have none."""

    modelfile: str | None = None  # TEMPLATE
    file: str | None = None  # chat_template.jinja
    config: JsonValue = None  # tokenizer_config's chat_template: one, or several by name
    gguf: str | None = None  # tokenizer.chat_template


def read_sources(
    files: Mapping[str, bytes], *, modelfile: str | None = None, gguf: str | None = None
) -> TemplateSources:
    """The sources among a model's files, by their published names. Raises LoadError."""
    config, template = files.get(TOKENIZER_CONFIG), files.get(TEMPLATE_FILE)
    try:
        parsed = json.loads(config) if config is not None else {}
        text = None if template is None else template.decode()
    except ValueError as error:
        raise LoadError(f"{TOKENIZER_CONFIG} or {TEMPLATE_FILE} is unreadable: {error}") from error
    named = parsed.get("chat_template") if isinstance(parsed, dict) else None
    return TemplateSources(modelfile, text, named, gguf)


class ChatTemplates:
    """A model's templates, compiled: one for requests with tools, one for those without."""

    def __init__(self, plain: Template | None, with_tools: Template | None) -> None:
        self._plain = plain
        self._with_tools = with_tools
        present = [template.literals for template in (plain, with_tools) if template is not None]
        self.literals = "\0".join(dict.fromkeys(present))

    @classmethod
    def load(cls, sources: TemplateSources) -> "ChatTemplates":
        """Raises LoadError for bad Jinja, UnsupportedError for a Go template."""
        plain = choose_source(sources, tools_given=False)
        with_tools = choose_source(sources, tools_given=True)
        compiled = None if plain is None else Template(plain)
        if with_tools == plain:
            return cls(compiled, compiled)
        return cls(compiled, None if with_tools is None else Template(with_tools))

    def choose(self, *, tools_given: bool) -> Template:
        """The template for a request. Raises RequestError where the model has none."""
        template = self._with_tools if tools_given else self._plain
        if template is None:
            raise RequestError(
                "this model has no chat template; give it one as TEMPLATE (Jinja) in a Modelfile "
                "and create it again, or send a raw prompt to the generate endpoint"
            )
        return template


def choose_source(sources: TemplateSources, *, tools_given: bool) -> str | None:
    """The text of the first template there is; None if there is none."""
    if sources.modelfile and sources.modelfile.strip():
        refuse_go_template(sources.modelfile)
        return sources.modelfile
    if sources.file and sources.file.strip():
        return sources.file
    named = _named(sources.config)
    wanted = (TOOL_USE, DEFAULT) if tools_given else (DEFAULT,)
    for name in wanted:
        if name in named:
            return named[name]
    return sources.gguf


def refuse_go_template(text: str) -> None:
    """Raise UnsupportedError if `text` is a template in Go's language."""
    found = _GO.search(text)
    if found is not None:
        line = text[found.start() :].partition("}}")[0] + "}}"
        raise UnsupportedError(
            f"TEMPLATE is written in Go's template language ({' '.join(line.split())}); write it "
            "in Jinja, as in a Hugging Face chat_template.jinja, or leave TEMPLATE out to use the "
            "model's own"
        )


def _named(config: JsonValue) -> dict[str, str]:
    """tokenizer_config's chat_template by name."""
    if isinstance(config, str):
        return {DEFAULT: config}
    named: dict[str, str] = {}
    for entry in config if isinstance(config, list) else []:
        if isinstance(entry, dict):
            name, template = entry.get("name"), entry.get("template")
            if isinstance(name, str) and isinstance(template, str):
                named[name] = template
    return named
