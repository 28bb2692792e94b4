"""`think: false` in the family of Qwen 3.5: 06 QWN-18, 08 PAR-2, API-9.

Templates of our own writing: one that knows the switch, as Qwen 3.5's do, and one that opens
thinking whatever it is told, as those of models that were trained for nothing else.
"""

import pytest

from fixtures.tiny import write_tokenizer
from forerun.chat.dialects.families import speech_of
from forerun.chat.dialects.registry import dialect_of
from forerun.chat.render import ChatRenderer
from forerun.chat.sources import ChatTemplates
from forerun.protocol.requests import CompletionRequest, Message
from forerun.runner.prepare import Limits, prepare
from forerun.runner.text import TextParts
from forerun.tokenizer.tokenizer import Tokenizer
from unit.text.reading import TOOLS

LIMITS = Limits(context=4000, max_context=4000, vocab_size=264)
TURNS = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}{{ tools }}"
SWITCHED = TURNS + (
    "{% if add_generation_prompt %}{{ 'assistant:' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\n\n</think>\n\n' }}"
    "{% else %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
ALWAYS = TURNS + "{% if add_generation_prompt %}{{ 'assistant:<think>\n' }}{% endif %}"
NEVER = TURNS + "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
HYBRID, OTHER = {"architectures": ["Qwen3_5ForCausalLM"]}, {"architectures": ["LlamaForCausalLM"]}
HI = Message(role="user", content="hi")
XML_CALL = "<tool_call>\n<function=find>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>"
JSON_CALL = '<tool_call>\n{"name": "find", "arguments": {"a": "x"}}\n</tool_call>'


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def model(files, template, config=HYBRID):
    """The text plane of an import of that config."""
    templates = ChatTemplates.load(template)
    tokenizer = Tokenizer.load(files, templates.literals)
    speech = speech_of(config, templates, parser="", renderer="")
    return TextParts(
        name="tiny",
        tokenizer=tokenizer,
        renderer=ChatRenderer(templates, tokenizer.special.names, tokenizer.control_tokens),
        parameters={},
        system=None,
        messages=(),
        capabilities=speech.capabilities,
        dialect=dialect_of(templates, speech.parser),
        tag_ids=frozenset(),
    )


def asked(text, *messages, **fields):
    """The prompt, and the parser of the answer to it."""
    request = CompletionRequest(messages=[*messages] or [HI], **fields)
    prepared = prepare(request, text, LIMITS)
    assert prepared.channels is not None
    return text.tokenizer.decode(prepared.tokens, control=True), prepared.channels.start()


def said(channels, answer):
    pieces = channels.push(answer) + channels.finish()
    calls = [(call.name, call.arguments) for piece in pieces for call in piece.calls]
    return "".join(p.thinking for p in pieces), "".join(p.text for p in pieces), calls


@pytest.mark.parametrize("template", [SWITCHED, ALWAYS])
def test_an_empty_block_in_the_prompt_answers_for_it(files, template):
    """PAR-2, QWN-18: nothing of the block is in the answer, and nothing is thought."""
    prompt, channels = asked(model(files, template), think=False)
    assert prompt.endswith("assistant:<think>\n\n</think>\n\n")
    assert said(channels, "so") == ("", "so", [])


@pytest.mark.parametrize("answer", ["<think>\n\n</think>\n\nso", "\n<think></think>so", "so"])
def test_a_block_that_the_model_repeats_does_not_leak(files, answer):
    """QWN-18: an empty block was the answer's content."""
    for template in (SWITCHED, NEVER):
        _, channels = asked(model(files, template), think=False)
        assert said(channels, answer)[:2] == ("", "so")


@pytest.mark.parametrize("think", [None, True, "low"])
@pytest.mark.parametrize("template", [SWITCHED, ALWAYS])
def test_thinking_that_is_wanted_is_left_open(files, template, think):
    """API-9: also where nobody says; the closing tag alone parts it from the answer."""
    prompt, channels = asked(model(files, template), think=think)
    assert prompt.endswith("assistant:<think>\n")
    assert said(channels, "why\n</think>\n\nso") == ("why", "so", [])


def test_models_that_know_no_empty_block_are_left_to_their_templates(files):
    """PAR-2: what closes thinking in one family is noise in another."""
    prompt, channels = asked(model(files, ALWAYS, OTHER), think=False)
    assert prompt.endswith("assistant:<think>\n")
    assert said(channels, "why</think>so") == ("why", "so", [])


def test_a_continued_message_stays_as_it_is(files):
    """06 TMP-4: it was begun with its thinking open."""
    begun = Message(role="assistant", content="<think>\n")
    prompt, channels = asked(model(files, NEVER), HI, begun, think=False)
    assert prompt.rstrip("\n").endswith("<think>")
    assert said(channels, "why</think>so") == ("why", "so", [])


@pytest.mark.parametrize("call", [XML_CALL, JSON_CALL])
def test_calls_are_read_in_both_notations_of_the_family(files, call):
    """CAP-2, 08 PAR-1: Qwen 3.5 writes XML, Qwen 3-Next JSON; behind thinking as without it."""
    taught = "<tool_call>" + SWITCHED
    for think, opening in ((True, "why</think>\n\n"), (False, "")):
        _, channels = asked(model(files, taught), think=think, tools=TOOLS)
        thinking = "why" if think else ""
        assert said(channels, opening + call) == (thinking, "", [("find", {"a": "x"})])
