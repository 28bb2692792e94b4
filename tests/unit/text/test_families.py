"""How a family's models are spoken with: 07 CAP-1, CAP-2, CAP-3, CAP-5; 06 QWN-18; 08 API-17.

The templates are of our own writing, with what tells the families' real ones apart.
"""

import pytest

from forerun.base.errors import RequestError
from forerun.chat.dialects.families import Speech, family_of, speech_of
from forerun.chat.dialects.registry import DIALECTS
from forerun.chat.sources import ChatTemplates

SHOWS = "{% if tools %}{{ tools | tojson }}{% endif %}"
PLAIN = SHOWS + "<tool_call>{{ messages }}"
CODER = SHOWS + "<tool_call><function=f>{{ messages }}"
THINKING = PLAIN + "<think>"
LATER = (
    "{% set resolved_reasoning_effort = reasoning_effort %}"
    "{% if preserve_thinking is defined %}{{ '<think>' }}{% endif %}{{ messages }}"
)
ALL = ("completion", "tools", "thinking")


def config(architecture, **fields):
    return {"architectures": [architecture], **fields}


def spoken(stated, template=PLAIN, *, parser="", renderer=""):
    return speech_of(stated, ChatTemplates.load(template), parser=parser, renderer=renderer)


HYBRIDS = [
    config("Qwen3_5ForCausalLM"),
    config("Qwen3_5ForConditionalGeneration", model_type="qwen3_5"),
    config("Qwen3_5MoeForConditionalGeneration"),
    config("Qwen3NextForCausalLM", model_type="qwen3_next"),
    config("Qwen3NextForConditionalGeneration"),
    {"model_type": "qwen3_5_moe"},
    config("OfTheirOwn", model_type="qwen3_next"),
]


@pytest.mark.parametrize("stated", HYBRIDS, ids=str)
@pytest.mark.parametrize("template", [PLAIN, CODER, THINKING])
def test_the_hybrid_family_is_told_before_qwen3_which_its_names_hold(stated, template):
    """QWN-18, CAP-2: whatever the template shows; CAP-1: all of the family think."""
    assert spoken(stated, template) == Speech("qwen3.5", "qwen3.5", ALL)


def test_a_later_template_of_the_family_has_a_renderer_of_its_own():
    """CAP-2: both words tell it; one is in earlier templates too."""
    stated = HYBRIDS[0]
    assert spoken(stated, LATER).renderer == "qwen3.8"
    assert spoken(stated, LATER).parser == "qwen3.5"
    for word in ("resolved_reasoning_effort", "preserve_thinking"):
        assert spoken(stated, LATER.replace(word, "other")).renderer == "qwen3.5"


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"])
def test_other_models_of_qwen3_think_where_their_templates_do(architecture):
    """CAP-1, CAP-2: it comes as models that think, that do not, and that write code."""
    stated = config(architecture)
    assert spoken(stated, THINKING) == Speech("qwen3", "qwen3", ALL)
    assert spoken(stated, PLAIN) == Speech("qwen3", "qwen3", ALL[:2])
    assert spoken(stated, CODER) == Speech("qwen3-coder", "qwen3-coder", ALL[:2])
    both = spoken(stated, CODER + "<think>")
    assert both == Speech("qwen3", "qwen3", ALL)


@pytest.mark.parametrize("stated", [{}, config("LlamaForCausalLM"), {"architectures": []}])
def test_a_model_of_no_such_family_is_told_by_its_template(stated):
    """CAP-1, 08 PAR-3."""
    assert spoken(stated, THINKING) == Speech("", "", ALL)
    assert spoken(stated, "{{ messages }}") == Speech("", "", ("completion",))


@pytest.mark.parametrize("stated", [HYBRIDS[1], config("Gemma3ForConditionalGeneration")])
def test_a_tower_that_is_not_served_is_no_capability(stated):
    """CAP-1 as decision 0021 reads it, 08 API-17: images to these models are refused."""
    with_tower = stated | {"vision_config": {"depth": 1}, "has_vision": True, "audio_config": {}}
    assert spoken(with_tower).capabilities == spoken(stated).capabilities
    assert not {"vision", "audio"} & set(spoken(with_tower).capabilities)


@pytest.mark.parametrize(
    ("template", "thinks"),
    [
        ("{% set answer = m.split('</think>')[-1] %}{{ messages }}", True),
        ('{% set answer = m.split( "</think>" ) | last %}{{ messages }}', True),
        ("{{ m.split('</think>')[-1] }}{{ m.reasoning_content }}", False),
        ("{{ m.split('</b>')[-1] }}</think>", False),
    ],
)
def test_a_template_that_cuts_thinking_off_is_of_a_model_that_thinks(template, thinks):
    """CAP-1: where nothing else could have taken the thinking out."""
    able = ("completion", "thinking") if thinks else ("completion",)
    assert spoken({}, template).capabilities == able


def test_a_modelfile_goes_before_the_family():
    """CAP-3; a parser that is not the family's own is its word for thinking, too (CAP-1)."""
    stated = config("Qwen3ForCausalLM")
    named = spoken(stated, PLAIN, parser="qwen3.5", renderer="drawn")
    assert named == Speech("qwen3.5", "drawn", ALL)
    assert spoken(stated, PLAIN, parser="qwen3", renderer="qwen3") == spoken(stated, PLAIN)
    assert spoken(HYBRIDS[0], THINKING, parser="hermes") == Speech("hermes", "qwen3.5", ALL[:2])
    with pytest.raises(RequestError, match="PARSER is 'mine'"):
        spoken(stated, parser="mine")


def test_every_parser_that_is_recorded_can_be_read():
    """CAP-2, 08 API-17."""
    stated = [*HYBRIDS, config("Qwen3ForCausalLM"), config("Qwen3VLForConditionalGeneration"), {}]
    for each in stated:
        for template in (PLAIN, CODER, THINKING, LATER, None):
            parser = family_of(each, ChatTemplates.load(template)).parser
            assert not parser or parser in DIALECTS
