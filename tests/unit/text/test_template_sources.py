"""Which template a request gets (spec 06 TMP-5)."""

import json

import pytest

from forerun.base.errors import LoadError, RequestError, UnsupportedError
from forerun.chat.sources import (
    ChatTemplates,
    TemplateSources,
    choose_source,
    read_sources,
    refuse_go_template,
)

NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("sources", "plain", "with_tools"),
    [
        (TemplateSources("M", "F", NAMED, "G"), "M", "M"),
        (TemplateSources(None, "F", NAMED, "G"), "F", "F"),
        (TemplateSources(None, None, NAMED, "G"), "D", "T"),
        (TemplateSources(None, None, "C", "G"), "C", "C"),
        (TemplateSources(None, None, NAMED[:1], "G"), "D", "D"),
        (TemplateSources(None, None, NAMED[1:], "G"), "G", "T"),
        (TemplateSources(None, None, None, "G"), "G", "G"),
        (TemplateSources(None, None, [1, {"name": "default"}], None), None, None),
        (TemplateSources(" ", "\n", "C"), "C", "C"),
    ],
)
def test_the_first_source_is_taken(sources, plain, with_tools):
    """TMP-5."""
    assert choose_source(sources, tools_given=False) == plain
    assert choose_source(sources, tools_given=True) == with_tools


def test_sources_are_found_among_a_models_files():
    """TMP-5."""
    config = json.dumps({"chat_template": NAMED}).encode()
    files = {"chat_template.jinja": "é".encode(), "tokenizer_config.json": config}
    assert read_sources(files, modelfile="M", gguf="G") == TemplateSources("M", "é", NAMED, "G")
    assert read_sources({}) == TemplateSources()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"\xff"),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_unreadable_sources_are_named(name, content):
    with pytest.raises(LoadError, match=name):
        read_sources({name: content})


def test_a_request_with_tools_gets_the_template_for_tools():
    """TMP-5; both count for TOK-2."""
    templates = ChatTemplates.load(TemplateSources(config=NAMED))
    assert templates.choose(tools_given=True).source == "T"
    assert templates.choose(tools_given=False).source == "D"
    assert templates.literals.split("\0") == ["D", "T"]


def test_a_model_without_a_template_names_the_remedy():
    """TMP-5: only when one is asked for; such a model still completes raw prompts."""
    templates = ChatTemplates.load(TemplateSources())
    assert templates.literals == ""
    with pytest.raises(RequestError, match=r"TEMPLATE \(Jinja\) in a Modelfile.*raw prompt"):
        templates.choose(tools_given=False)


@pytest.mark.parametrize(
    "text",
    [
        "{{ .Prompt }}",
        "{{- if .System }}<s>{{ .System }}{{ end }}",
        "a {{ range $i, $m := .Messages }}{{ end }}",
        "{{ range .Messages }}x",
        "{{ end }}",
        "{{/* comment */}}",
        '{{ if (eq .Role "user") }}',
        "{{- else if eq .Role }}",
    ],
)
def test_a_go_template_is_refused_with_the_alternative(text):
    """TMP-5."""
    with pytest.raises(UnsupportedError, match="in Jinja, as in a Hugging Face chat_template"):
        refuse_go_template(text)
    with pytest.raises(UnsupportedError):
        ChatTemplates.load(TemplateSources(modelfile=text, file="F"))


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content }}",
        "{{ 'Use .NET or $HOME' }}",
        "{% for m in messages %}{{- m.role }}{% endfor %}{{ range(3) | list }}",
        "{{ end_of_turn }}{{ iffy }}{{ template ~ 'x' }}",
        "plain text",
    ],
)
def test_jinja_is_not_taken_for_go(text):
    """TMP-5."""
    refuse_go_template(text)


def test_a_broken_template_is_named_at_load():
    with pytest.raises(LoadError, match="no valid Jinja, line 1"):
        ChatTemplates.load(TemplateSources(file="{% for %}"))
