"""Which of a model's chat templates a request is rendered with (spec 06 TMP-5)."""

import re

from forerun.base.errors import RequestError
from forerun.base.go_templates import refuse_go_template
from forerun.base.json_types import JsonValue
from forerun.chat.template import Template

DEFAULT = "default"
TOOL_USE = "tool_use"


class ChatTemplates:
    """A model's templates, compiled: one for requests with tools, one for those without."""

    def __init__(self, plain: Template | None, with_tools: Template | None) -> None:
        self._plain = plain
        self._with_tools = with_tools
        present = [template for template in (plain, with_tools) if template is not None]
        self.literals = "\0".join(dict.fromkeys(template.literals for template in present))
        self._text = "\0".join(dict.fromkeys(template.source for template in present))
        self.show_tools = with_tools is not None and "tools" in with_tools.names

    @classmethod
    def load(cls, template: str | None = None, named: JsonValue = None) -> "ChatTemplates":
        """Compile a model's templates.

        template  the model's own layer, which an import made of a Modelfile's TEMPLATE or of a
                  chat_template.jinja; it goes before the others unless it is blank
        named     tokenizer_config's chat_template: one, or several by name

        Raises LoadError for bad Jinja, RequestError for a Go template.
        """
        if template and template.strip():
            refuse_go_template(template)
            compiled = Template(template)
            return cls(compiled, compiled)
        texts = _named(named)
        plain = texts.get(DEFAULT)
        with_tools = texts.get(TOOL_USE, plain)
        default = None if plain is None else Template(plain)
        if with_tools is None or with_tools == plain:
            return cls(default, default)
        return cls(default, Template(with_tools))

    def mention(self, *words: str) -> bool:
        """Whether the templates hold all of these, in whatever place."""
        return all(word in self._text for word in words)

    def split_at(self, mark: str) -> bool:
        """Whether a template cuts a string at that literal, as in `content.split('</think>')`."""
        called = rf"""\.split\(\s*['"]{re.escape(mark)}['"]"""
        return re.search(called, self._text) is not None

    def choose(self, *, tools_given: bool) -> Template:
        """The template for a request. Raises RequestError where the model has none."""
        template = self._with_tools if tools_given else self._plain
        if template is None:
            raise RequestError(
                "this model has no chat template; give it one as TEMPLATE (Jinja) in a Modelfile "
                "and create it again, or continue plain text with `forerun run --raw`"
            )
        return template


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
