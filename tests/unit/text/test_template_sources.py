"""Which template a request gets (spec 06 TMP-5)."""

import pytest

from forerun.base.errors import LoadError, RequestError
from forerun.chat.sources import ChatTemplates

NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("template", "named", "plain", "with_tools"),
    [
        ("M", NAMED, "M", "M"),
        (None, NAMED, "D", "T"),
        (None, "C", "C", "C"),
        (None, NAMED[:1], "D", "D"),
        (None, [*NAMED, 1, {"name": "default"}], "D", "T"),
        (" \n", "C", "C", "C"),
        ("", NAMED, "D", "T"),
    ],
)
def test_the_models_own_template_goes_before_the_tokenizers(template, named, plain, with_tools):
    """TMP-5; both that may be chosen count for TOK-2."""
    templates = ChatTemplates.load(template, named)
    assert templates.choose(tools_given=False).source == plain
    assert templates.choose(tools_given=True).source == with_tools
    assert templates.literals.split("\0") == list(dict.fromkeys([plain, with_tools]))


def test_a_template_for_tools_alone_serves_no_other_request():
    """TMP-5."""
    templates = ChatTemplates.load(named=NAMED[1:])
    assert templates.choose(tools_given=True).source == "T"
    with pytest.raises(RequestError, match="no chat template"):
        templates.choose(tools_given=False)


@pytest.mark.parametrize("named", [None, [], [1, {"name": "default"}], {"default": "D"}])
@pytest.mark.parametrize("tools_given", [True, False])
def test_a_model_without_a_template_names_the_remedy(named, tools_given):
    """TMP-5: only when one is asked for; such a model still completes raw prompts."""
    templates = ChatTemplates.load(named=named)
    assert templates.literals == ""
    with pytest.raises(RequestError, match=r"TEMPLATE \(Jinja\) in a Modelfile.*run --raw"):
        templates.choose(tools_given=tools_given)


def test_a_go_template_is_refused_and_jinja_that_looks_like_it_is_not():
    """TMP-5."""
    with pytest.raises(RequestError, match="write it in Jinja"):
        ChatTemplates.load("{{ .Prompt }}", "C")
    jinja = "{% for block in message.content %}{{ block.text }}{% endfor %}"
    assert ChatTemplates.load(jinja).choose(tools_given=False).source == jinja


def test_a_broken_template_is_named_at_load():
    with pytest.raises(LoadError, match="no valid Jinja, line 1"):
        ChatTemplates.load("{% for %}")
