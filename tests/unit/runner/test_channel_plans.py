"""What a model can do and how its answer is read: 08 API-9, API-10, API-17, PAR-2..4; OAI-2; B13.

`reasoning_effort` of the OpenAI door arrives here as `think` (08 OAI-2).
"""

import dataclasses
import json
from datetime import datetime

import pytest

from fixtures.scripted import OPENED_THINKING, PLAIN, THINKING, THINKING_TOOLS
from fixtures.tiny import CONTROL_TOKENS, write_tokenizer
from forerun.base.errors import RequestError
from forerun.chat.dialects.registry import capabilities, dialect_of
from forerun.chat.render import ChatRenderer, ChatRequest
from forerun.chat.sources import ChatTemplates
from forerun.protocol.requests import CompletionRequest, ContentPart, Message, ToolCall
from forerun.runner.prepare import Limits, prepare
from forerun.runner.text import TextParts
from forerun.tokenizer.tokenizer import Tokenizer
from unit.text.reading import TOOLS

LIMITS = Limits(context=4000, max_context=4000, vocab_size=264)
HI = Message(role="user", content="hi")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def model(files, template, *, parser=""):
    templates = ChatTemplates.load(template)
    tokenizer = Tokenizer.load(files, templates.literals)
    return TextParts(
        name="tiny",
        tokenizer=tokenizer,
        renderer=ChatRenderer(templates, tokenizer.special.names, tokenizer.control_tokens),
        parameters={},
        system=None,
        messages=(),
        capabilities=capabilities(templates, parser),
        dialect=dialect_of(templates, parser),
        tag_ids=frozenset(),
    )


def ask(text, *messages, **request):
    return prepare(CompletionRequest(messages=[*messages] or [HI], **request), text, LIMITS)


def prompt(text, *messages, **request):
    return text.tokenizer.decode(ask(text, *messages, **request).tokens, control=True)


@pytest.mark.parametrize("think", [True, "low", "medium", "high", "max"])
def test_thinking_is_refused_where_the_model_cannot(files, think):
    """API-9, API-17: for chats and for raw prompts."""
    plain = model(files, PLAIN)
    with pytest.raises(RequestError, match='"tiny" does not support thinking'):
        ask(plain, think=think)
    with pytest.raises(RequestError, match='"tiny" does not support thinking'):
        prepare(CompletionRequest(prompt="a", think=think), plain, LIMITS)


@pytest.mark.parametrize("think", [None, False])
def test_no_thinking_is_fine_with_any_model(files, think):
    """API-9."""
    assert ask(model(files, PLAIN), think=think).channels is None


@pytest.mark.parametrize("think", ["hard", "", "LOW", "none"])
def test_only_four_levels_are_known(files, think):
    """API-9: others are a 400."""
    with pytest.raises(RequestError, match="true, false or one of low, medium, high, max"):
        ask(model(files, THINKING), think=think)


@pytest.mark.parametrize("template", [PLAIN, THINKING])
def test_tools_are_refused_where_the_model_cannot(files, template):
    """API-10, API-17."""
    with pytest.raises(RequestError, match='"tiny" does not support tools'):
        ask(model(files, template), tools=TOOLS)
    assert ask(model(files, template), tools=[]) == ask(model(files, template))


@pytest.mark.parametrize("missing", ["thinking", "tools"])
def test_the_manifest_decides(files, missing):
    """API-17: what it does not state is not offered, whatever the template writes."""
    able = model(files, THINKING_TOOLS)
    kept = tuple(each for each in able.capabilities if each != missing)
    with pytest.raises(RequestError, match=f"does not support {missing}"):
        ask(dataclasses.replace(able, capabilities=kept), think=True, tools=TOOLS)


KNOBS = (
    "{{ messages[0].content }}<think></think>"
    "|{{ enable_thinking }}|{{ thinking }}|{{ reasoning_effort }}|"
)


@pytest.mark.parametrize(
    ("think", "arguments", "knobs"),
    [
        (None, None, "|True|True||"),
        (True, None, "|True|True||"),
        (False, None, "|False|False||"),
        ("high", None, "|True|True|high|"),
        (None, {"enable_thinking": False}, "|False|True||"),
        (True, {"enable_thinking": False, "reasoning_effort": "x"}, "|True|True|x|"),
    ],
)
def test_unset_means_on_for_a_model_that_can_think(files, think, arguments, knobs):
    """API-9, OAI-2; an argument for the template goes before what nobody asked for."""
    said = prompt(model(files, KNOBS), think=think, template_arguments=arguments)
    assert said.endswith(f"</think>{knobs}")


def test_a_model_that_cannot_think_hears_nothing_of_it(files):
    assert prompt(model(files, KNOBS.replace("<think>", ""))).endswith("</think>||||")


@pytest.mark.parametrize(
    ("template", "request_fields", "opening"),
    [
        (THINKING, {}, "start"),
        (THINKING, {"think": False}, "closed"),
        (OPENED_THINKING, {}, "opened"),
        (OPENED_THINKING, {"think": False}, "opened"),
    ],
)
def test_the_answer_begins_where_the_prompt_ends(files, template, request_fields, opening):
    """PAR-2, PAR-3."""
    assert ask(model(files, template), **request_fields).channels.opening == opening


@pytest.mark.parametrize(
    ("last", "opening"),
    [
        (Message(role="assistant", content="so"), "text"),
        (Message(role="assistant", content=[ContentPart(type="text", text="so")]), "text"),
        (Message(role="assistant", content="so", thinking="why"), "text"),
        (Message(role="assistant", content="<think>why"), "inside"),
        (Message(role="assistant", thinking="why"), "inside"),
        (Message(role="assistant", content=""), "start"),
    ],
)
def test_a_continued_message_goes_on_in_its_channel(files, last, opening):
    """06 TMP-4."""
    assert ask(model(files, THINKING), HI, last).channels.opening == opening


def test_what_a_user_types_does_not_begin_thinking(files):
    """PAR-2: only the template's own end of the prompt counts."""
    typed = Message(role="user", content="<think>")
    assert ask(model(files, THINKING), typed).channels.opening == "start"


def test_calls_are_separated_only_where_tools_are_given(files):
    """API-10."""
    able = model(files, THINKING_TOOLS)
    assert ask(able).channels.calls is None
    assert set(ask(able, tools=TOOLS).channels.tools.parameters) == {"find", "stop_all"}
    assert ask(able, tools=TOOLS).channels.opening == "start"
    only = model(files, THINKING_TOOLS, parser="hermes")
    assert ask(only).channels is None
    assert ask(only, tools=TOOLS).channels.opening is None


@pytest.mark.parametrize("request_fields", [{"prompt": "a"}, {"prompt_ids": [97]}])
def test_a_raw_prompts_answer_is_text(files, request_fields):
    able = model(files, THINKING_TOOLS)
    assert prepare(CompletionRequest(**request_fields), able, LIMITS).channels is None


def test_a_prompts_leading_bos_is_not_doubled(files):
    """PAR-4: the template writes it, and the tokenizer would put it in front."""
    config = json.loads(files["tokenizer_config.json"])
    config |= {"add_bos_token": True, "bos_token": CONTROL_TOKENS[0]}
    changed = {**files, "tokenizer_config.json": json.dumps(config).encode()}
    for start in ("{{ bos_token }}", ""):
        said = prompt(model(changed, start + PLAIN))
        assert said.startswith(CONTROL_TOKENS[0])
        assert said.count(CONTROL_TOKENS[0]) == 1


def rounds(text, raw, *history, **request):
    """A prompt with what the model answered to it, and that answer as our message of it."""
    prepared = ask(text, *history, **request)
    parser = prepared.channels.start()
    pieces = parser.push(raw) + parser.finish()
    calls = [call for piece in pieces for call in piece.calls]
    answer = Message(
        role="assistant",
        content="".join(piece.text for piece in pieces),
        thinking="".join(piece.thinking for piece in pieces),
        tool_calls=calls or None,
    )
    return text.tokenizer.decode(prepared.tokens, control=True) + raw, answer


def test_reasoning_that_is_echoed_is_reused_whole(files):
    """Case B13: the history with it renders what the model was given and wrote, to the letter."""
    text = model(files, THINKING_TOOLS)
    raw = (
        "<think>\nLet me see.\n\nYes.\n</think>\n\nI look."
        '<tool_call>\n{"name": "find", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "stop_all", "arguments": {}}\n</tool_call>\n'
    )
    written, answer = rounds(text, raw, HI, tools=TOOLS)
    result = Message(role="tool", content="7", tool_name="find", tool_call_id="call_1")
    assert prompt(text, HI, answer, result, tools=TOOLS).startswith(written)


QWEN_STYLE = """{% for message in messages %}
{% if message.role == 'tool' %}<|im_start|>user
<tool_response>{{ message.name }} {{ message.content }}</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{% endfor %}<|im_end|>
{% endif %}{% endfor %}"""
LLAMA_STYLE = """{% for message in messages %}<|im_start|>{{ message.role }}|
{%- if message.tool_calls %}{{ message.tool_calls[0].function.name }}
{{- message.tool_calls[0].function.arguments | tojson }}
{%- elif message.role == 'tool' %}{{ message.content | tojson }}|{{ message.tool_call_id }}
{%- else %}{{ message.content }}{% endif %}<|im_end|>{% endfor %}"""


@pytest.mark.parametrize(
    ("template", "holds"),
    [
        (QWEN_STYLE, ["<think>\nwhy\n</think>", 'find {"a": "é"}', "<tool_response>find 7<"]),
        (LLAMA_STYLE, ['assistant|find{"a": "é"}', 'tool|"7"|call_1']),
    ],
)
def test_calls_results_and_reasoning_reach_templates_of_each_style(files, template, holds):
    """Case B13; 06 TMP-3: tool_name as `name`, tool_call_id, thinking as `reasoning_content`."""
    calling = Message(
        role="assistant", thinking="why", tool_calls=[ToolCall(name="find", arguments={"a": "é"})]
    )
    result = Message(role="tool", content="7", tool_name="find", tool_call_id="call_1")
    said = prompt(model(files, template), HI, calling, result)
    for part in holds:
        assert part in said


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_read_under_every_name(files, name):
    """Case B13: a message as clients send it."""
    text = model(files, THINKING)
    message = {"role": "assistant", "content": "so", name: "why"}
    user = {"role": "user", "content": "a"}
    spans = text.renderer.render(ChatRequest([user, message, user]), datetime(2026, 1, 2))
    assert "<think>\nwhy\n</think>\n\nso" in "".join(span.text for span in spans)
