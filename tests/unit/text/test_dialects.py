"""Which dialect a model speaks and what it can do, told by its templates: 08 PAR-3, API-17.

The templates have what those of the families have in their literals, and nothing else.
"""

import pytest
from tokenizers import Tokenizer as Library

from forerun.base.errors import RequestError
from forerun.chat.dialects.registry import DIALECTS, capabilities, dialect_of
from forerun.chat.sources import ChatTemplates
from forerun.runner.text import tag_ids
from forerun.tokenizer.tokenizer import Tokenizer
from unit.text.sample_tokenizers import library

SHOWS = "{% if tools %}{{ tools | tojson }}{% endif %}"
TEMPLATES = {
    "think": "{{ messages }}{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}",
    "hermes": SHOWS + '<tool_call>\n{"name": <name>}\n</tool_call>{{ messages }}',
    "qwen3": SHOWS + "<tool_call></tool_call>{{ messages }}{{ '<think>\\n\\n</think>' }}",
    "llama3": SHOWS + '{{ \'{"name": "\' + "f" + \'", "parameters": \' }}<|python_tag|>',
    "gemma3": SHOWS + "```tool_code\n```{{ messages }}",
    "functiongemma": SHOWS + "{{ '<start_function_call>call:' }}<escape>",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_templates_literals_tell_the_dialect(name):
    """PAR-3."""
    assert dialect_of(ChatTemplates.load(TEMPLATES[name])) == DIALECTS[name]


@pytest.mark.parametrize(
    ("template", "able"),
    [
        (None, ("completion",)),
        ("{{ messages }}", ("completion",)),
        ("{{ messages }}</think>", ("completion",)),
        (TEMPLATES["think"], ("completion", "thinking")),
        (TEMPLATES["hermes"], ("completion", "tools")),
        (TEMPLATES["qwen3"], ("completion", "tools", "thinking")),
        (TEMPLATES["llama3"], ("completion", "tools")),
        (SHOWS + "[TOOL_CALLS]", ("completion",)),
        (SHOWS + '"parameters": ', ("completion",)),
        (SHOWS + '{"name": ', ("completion",)),
        ("<tool_call>{{ messages }}", ("completion",)),
        ("{# <think> #}{{ messages }}", ("completion",)),
    ],
)
def test_capabilities_are_what_template_and_code_can_do_together(template, able):
    """API-17: tools take a template that shows them and a notation that is read."""
    assert capabilities(ChatTemplates.load(template)) == able


def test_a_template_of_its_own_for_tools_counts():
    named = [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": TEMPLATES["hermes"]},
    ]
    assert capabilities(ChatTemplates.load(named=named)) == ("completion", "tools")


@pytest.mark.parametrize(
    ("parser", "able"),
    [
        ("think", ("completion", "thinking")),
        ("hermes", ("completion", "tools")),
        ("qwen3", ("completion", "tools", "thinking")),
        ("", ("completion",)),
    ],
)
def test_a_parser_goes_before_what_the_template_writes(parser, able):
    templates = ChatTemplates.load(SHOWS + "{{ messages }}")
    assert capabilities(templates, parser) == able
    assert capabilities(ChatTemplates.load("{{ messages }}"), parser) == tuple(
        each for each in able if each != "tools"
    )


def test_an_unknown_parser_is_refused_with_those_that_are_known():
    """08 API-17."""
    with pytest.raises(RequestError, match="PARSER is 'harmony'; it must be one of think, hermes"):
        dialect_of(ChatTemplates.load("{{ messages }}"), "harmony")


def test_control_tokens_that_are_tags_of_the_dialect_have_text():
    own = Library.from_str(library("qwen").to_str())  # other tests share that one
    own.add_special_tokens(["<tool_call>", "<|other|>"])
    files = {"tokenizer.json": own.to_str().encode()}
    tokenizer = Tokenizer.load(files)
    assert tag_ids(tokenizer, DIALECTS["qwen3"]) == {own.token_to_id("<tool_call>")}
    assert tag_ids(tokenizer, DIALECTS["llama3"]) == set()
