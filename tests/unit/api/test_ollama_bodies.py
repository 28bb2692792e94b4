"""From the bodies of native requests to what is asked inside (08 API-5, API-7; E13, D13, B13)."""

import json

import pytest
from msgspec.structs import fields

from forerun.api.answers import Ask
from forerun.api.bodies import WireStruct
from forerun.api.ollama.chat import ChatBody, chat_ask
from forerun.api.ollama.embed import EmbedBody, EmbeddingsBody, texts_of
from forerun.api.ollama.generate import GenerateBody, generate_ask
from forerun.api.ollama.messages import WireFunction, WireMessage, WirePart, WireToolCall
from forerun.base.errors import ForerunError, RequestError, UnsupportedError
from forerun.protocol.codec import decode
from forerun.protocol.requests import CompletionRequest, ContentPart, Message, ToolCall
from forerun.scheduler.runners import LoadOptions

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}}
USER = {"role": "user", "content": "hi"}
BODIES: list[type[WireStruct]] = [
    *(GenerateBody, ChatBody, EmbedBody, EmbeddingsBody),
    *(WireMessage, WireToolCall, WireFunction, WirePart),
]
REQUIRED = {
    "model": "m",
    "role": "user",
    "type": "text",
    "function": {"name": "f"},
    "name": "f",  # of a function
}


def chat(**fields: object) -> Ask:
    return chat_ask(decode(json.dumps({"model": "m", "messages": [USER], **fields}), ChatBody))


def generate(**fields: object) -> Ask:
    return generate_ask(decode(json.dumps({"model": "m", "prompt": "hi", **fields}), GenerateBody))


def asked(ask: Ask) -> CompletionRequest:
    assert ask.request is not None
    return ask.request


def the_message(**fields: object) -> Message:
    messages = asked(chat(messages=[{"role": "user", **fields}])).messages
    assert messages is not None
    return messages[0]


def optional_fields(body: type[WireStruct]) -> list[str]:
    return [field.name for field in fields(body) if not field.required]


@pytest.mark.parametrize(
    ("body", "field"), [(body, name) for body in BODIES for name in optional_fields(body)]
)
def test_a_null_is_an_absent_field(body: type[WireStruct], field: str) -> None:
    """E13: each optional field alone."""
    given = {each.name: REQUIRED[each.name] for each in fields(body) if each.required}
    assert decode(json.dumps({**given, field: None}), body) == decode(json.dumps(given), body)


def test_all_fields_may_be_null_together() -> None:
    """E13."""
    nulls = dict.fromkeys(set(optional_fields(ChatBody)) - {"messages"})
    assert chat(**nulls) == chat()
    nulls = dict.fromkeys(set(optional_fields(GenerateBody)) - {"prompt"})
    assert generate(**nulls) == generate()
    assert the_message(**dict.fromkeys(optional_fields(WireMessage))) == Message(role="user")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 5),
        ("stream", "yes"),
        ("messages", "hi"),
        ("messages", [None]),
        ("tools", {}),
        ("options", []),
        ("think", 1),
        ("logprobs", 5),
        ("top_logprobs", "many"),
    ],
)
def test_a_wrong_type_is_refused_by_name(field: str, value: object) -> None:
    """08 API-14."""
    with pytest.raises(RequestError, match=rf"\$\.{field}"):
        chat(**{field: value})


def test_a_model_is_required() -> None:
    """08 API-5: the field is named."""
    with pytest.raises(RequestError, match="`model`"):
        decode(b"{}", GenerateBody)
    with pytest.raises(RequestError, match="model name"):
        chat(model="")


def test_a_prompt_is_one_user_turn() -> None:
    """08 API-5: after `system`, as the template wants it."""
    assert asked(generate()).messages == [Message(role="user", content="hi")]
    assert asked(generate(system="be brief")).messages == [
        Message(role="system", content="be brief"),
        Message(role="user", content="hi"),
    ]
    raw = asked(generate(raw=True))
    assert (raw.prompt, raw.messages) == ("hi", None)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"suffix": "end"}, RequestError, "does not support insert"),
        ({"template": "{{ .Prompt }}"}, UnsupportedError, "template is not supported"),
        ({"raw": True, "template": "x"}, RequestError, "leave template out"),
        ({"raw": True, "context": [1]}, RequestError, "leave context out"),
        ({"raw": True, "system": "x", "context": [1]}, RequestError, "leave system and context"),
    ],
)
def test_what_is_not_offered_is_refused(
    fields: dict[str, object], error: type[ForerunError], words: str
) -> None:
    """08 API-6, API-17."""
    with pytest.raises(error, match=words):
        generate(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": "", "template": "", "system": "", "context": [], "images": [], "format": ""},
        {"raw": False, "truncate": False, "shift": False, "truncated": 1, "width": 512},
    ],
)
def test_what_is_empty_or_without_effect_is_not_refused(fields: dict[str, object]) -> None:
    """08 API-12, E15."""
    assert generate(**fields) == generate()


@pytest.mark.parametrize("fields", [{"prompt": ""}, {"prompt": None}, {"prompt": "", "raw": True}])
def test_no_prompt_asks_for_the_model_alone(fields: dict[str, object]) -> None:
    """08 API-6, E15."""
    ask = generate(**fields, keep_alive=0)
    assert (ask.request, ask.keep_alive_s) == (None, 0)


def test_a_system_text_alone_asks_for_nothing() -> None:
    """08 API-6."""
    assert generate(prompt="", system="be brief").request is None


@pytest.mark.parametrize("messages", [None, []])
def test_no_messages_ask_for_the_model_alone(messages: list[object] | None) -> None:
    """08 API-7, E15."""
    assert chat(messages=messages).request is None


@pytest.mark.parametrize(
    ("content", "inside"),
    [
        ("hi", "hi"),
        ("", ""),
        (None, None),
        ([], []),
        ([{"type": "text", "text": ""}], [ContentPart(type="text")]),
        ([{"type": "text", "text": "a", "cache": 1}], [ContentPart(type="text", text="a")]),
        ([{"type": "image_url"}], [ContentPart(type="image_url")]),
    ],
)
def test_content_may_be_a_text_or_parts(content: object, inside: object) -> None:
    """08 API-7, E15: what a part may be is for the runner to say."""
    assert the_message(content=content).content == inside


def test_roles_are_in_lower_case() -> None:
    """08 API-7."""
    assert asked(chat(messages=[{"role": "USER"}])).messages == [Message(role="user")]


@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content"])
def test_reasoning_is_read_under_every_name(name: str) -> None:
    """B13."""
    assert the_message(**{name: "why"}).thinking == "why"


@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city":"Rome"}', None])
def test_tool_calls_of_earlier_turns(arguments: object) -> None:
    """08 API-7: an id and an index may be missing; arguments may be text."""
    call = {"function": {"name": "weather", "arguments": arguments, "index": 3}}
    expected = ToolCall(name="weather", arguments=arguments)
    assert the_message(tool_calls=[call]).tool_calls == [expected]
    assert the_message(tool_calls=[{**call, "id": "c1"}]).tool_calls == [
        ToolCall(name="weather", arguments=arguments, id="c1")
    ]


def test_results_of_tools() -> None:
    """08 API-7: `name` is what older clients call `tool_name`."""
    fields = {"role": "tool", "content": "11", "tool_call_id": "c1"}
    expected = Message(role="tool", content="11", tool_name="weather", tool_call_id="c1")
    assert the_message(**fields, tool_name="weather") == expected
    assert the_message(**fields, name="weather") == expected
    assert the_message(name="Ann").tool_name is None


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        (None, None),
        ("", None),
        ("json", "json"),
        (SCHEMA, SCHEMA),
        (json.dumps(SCHEMA), SCHEMA),
    ],
)
def test_a_format_may_be_sent_as_text(given: object, inside: object) -> None:
    """D13: nothing that was asked for is lost on the way."""
    assert asked(chat(format=given)).format == inside
    assert asked(generate(format=given)).format == inside


@pytest.mark.parametrize("given", ["yaml", "{", "[1]", '"text"', "[" * 100_000, 5, True, [SCHEMA]])
def test_a_format_that_is_none_is_refused(given: object) -> None:
    """D13: a 400 that names the field."""
    with pytest.raises(RequestError, match="format is"):
        chat(format=given)


@pytest.mark.parametrize(("given", "inside"), [(0, -1), (-1, -1), (-2, -2), (7, 7)])
def test_no_tokens_mean_no_limit(given: int, inside: int) -> None:
    """05 PRP-6: at this door alone."""
    assert asked(generate(options={"num_predict": given})).options == {"num_predict": inside}


def test_options_are_checked_and_set_apart() -> None:
    """08 OPT: null is absent, what a load fixes goes to the load, unknown ones are left out."""
    ask = chat(options={"num_ctx": 64, "num_gpu": 0, "top_k": None, "mirostat": 1})
    assert ask.load == LoadOptions(num_ctx=64, device="cpu")
    assert asked(ask).options == {"num_ctx": 64, "num_gpu": 0}
    with pytest.raises(RequestError, match="top_p is 5"):
        chat(options={"top_p": 5})


def test_a_great_many_unknown_options_are_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    """08 OPT: they are named in the log, which no request may fill."""
    chat(options={f"option{number}": 1 for number in range(10_000)})
    assert "'option0', " in caplog.text
    assert len(caplog.text) < 500


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0.0),
        ("0", 0.0),
        (-1, float("inf")),
        ("-1m", float("inf")),
        ("24h", 86400.0),
        (3600, 3600.0),
        (2.5, 2.5),
    ],
)
def test_keep_alive_in_every_form(given: object, seconds: float | None) -> None:
    """08 SCH-4, E09."""
    assert chat(keep_alive=given).keep_alive_s == seconds


@pytest.mark.parametrize("given", ["abc", True, [], {}])
def test_a_strange_keep_alive_is_refused(given: object) -> None:
    """E09: also where the model is only loaded."""
    with pytest.raises(RequestError, match="keep_alive is"):
        generate(prompt="", keep_alive=given)


def test_thinking_tools_and_logprobs_go_inside() -> None:
    """08 API-9, API-10, API-16: a model's runner knows what it can do."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}]
    request = asked(chat(think="high", tools=tools, logprobs=True, top_logprobs=3))
    assert (request.think, request.tools) == ("high", tools)
    assert (request.logprobs, request.top_logprobs) == (True, 3)
    assert asked(chat(tools=[])).tools is None
    assert asked(generate(think=False)).think is False


@pytest.mark.parametrize(
    ("given", "texts"), [(None, []), ("", []), ("a", ["a"]), (["a", ""], ["a", ""])]
)
def test_texts_to_embed(given: str | list[str] | None, texts: list[str]) -> None:
    """08 API-13: without a text the model is only loaded."""
    assert texts_of(given) == texts


def test_an_empty_list_of_texts_is_refused() -> None:
    """08 API-13."""
    with pytest.raises(RequestError, match="empty list"):
        texts_of([])
