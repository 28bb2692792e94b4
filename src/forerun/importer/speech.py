"""How a new model is spoken with, found out before anything of it is written (spec 07 CAP)."""

from collections.abc import Mapping

from forerun.base.json_types import JsonObject
from forerun.chat.dialects.families import Speech, speech_of
from forerun.chat.sources import ChatTemplates
from forerun.store.fields import parse_json


def check_templates(
    template: str | None, files: Mapping[str, bytes], *, parser: str = "", renderer: str = ""
) -> Speech:
    """Compile the chat templates, and say how the model is spoken with.

    Raises LoadError for bad Jinja, RequestError for a Go template or an unknown parser.

    template  of the Modelfile or of the source's own file
    files     of the checkpoint: config.json tells the family; the templates of
              tokenizer_config.json serve where there is no other
    parser    of the Modelfile, as `renderer` is; without one family and templates tell what
              answers are read as
    """
    named = _fields(files, "tokenizer_config.json").get("chat_template")
    templates = ChatTemplates.load(template, named)
    return speech_of(_fields(files, "config.json"), templates, parser=parser, renderer=renderer)


def _fields(files: Mapping[str, bytes], name: str) -> JsonObject:
    document = parse_json(files.get(name, b"{}"), name)
    return document if isinstance(document, dict) else {}
