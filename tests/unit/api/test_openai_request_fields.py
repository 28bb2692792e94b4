"""Fields of requests to the OpenAI-compatible doors, one mapping at a time."""

import msgspec
import pytest

from forerun.api.openai.formats import ResponseFormat, read_format
from forerun.api.openai.messages import ChatMessage, to_messages
from forerun.api.openai.sampling import SamplingFields, read_effort, read_sampling
from forerun.api.openai.tools import call_arguments, call_id, read_tools
from forerun.api.openai.usage import usage_of
from forerun.base.errors import RequestError, UnsupportedError
from forerun.protocol.events import Figures
from forerun.protocol.requests import ContentPart, Message, ToolCall

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"z": {}, "a": {}}},
        "strict": True,
    },
}


def chat(*messages: dict[str, object]) -> list[Message]:
    return to_messages(msgspec.convert(messages, list[ChatMessage]))


def sampling(**fields: object) -> dict[str, object]:
    return dict(read_sampling(msgspec.convert(fields, SamplingFields), {}))


def test_temperature_and_top_p_are_1_where_nothing_is_said() -> None:
    """OAI-2. Nothing else is stated, so the Modelfile and the table of options decide."""
    assert sampling() == {"temperature": 1.0, "top_p": 1.0}
    assert sampling(temperature=None, top_p=None, stop=None, seed=None) == sampling()


def test_sampling_fields_are_options() -> None:
    """OAI-2"""
    assert sampling(
        temperature=0,
        top_p=0.5,
        seed=7,
        stop="end",
        frequency_penalty=1,
        presence_penalty=-1,
        logit_bias={"5": -100},
        num_ctx=64,
    ) == {
        "temperature": 0.0,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["end"],
        "frequency_penalty": 1.0,
        "presence_penalty": -1.0,
        "logit_bias": {5: -100.0},
        "num_ctx": 64,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("temperature", True),
        ("top_p", 2),
        ("seed", 1.5),
        ("stop", [1]),
        ("frequency_penalty", 3),
        ("presence_penalty", [0]),
        ("logit_bias", {"x": 1}),
        ("logit_bias", [1]),
        ("num_ctx", 1),
    ],
)
def test_a_wrong_sampling_field_is_refused_by_its_name(field: str, value: object) -> None:
    """08 OPT: name, value and range."""
    with pytest.raises(RequestError, match=rf"option {field} is .*; it must be "):
        sampling(**{field: value})


def limited(**limits: object) -> object:
    return read_sampling(SamplingFields(), limits).get("num_predict")


def test_the_first_limit_that_is_given_bounds_the_answer() -> None:
    """OAI-2: max_completion_tokens wins over max_tokens, and 0 is a bound too."""
    assert limited(max_completion_tokens=None, max_tokens=None) is None
    assert limited(max_completion_tokens=None, max_tokens=0) == 0
    assert limited(max_completion_tokens=3, max_tokens=9) == 3
    assert limited(max_tokens=9.0) == 9


@pytest.mark.parametrize("value", [-1, 1.5, "9", True, 2**63, float(2**63), [1]])
def test_a_wrong_limit_is_refused_by_its_name(value: object) -> None:
    """OAI-2"""
    with pytest.raises(RequestError, match=r"max_tokens is .*; it must be a whole number"):
        limited(max_completion_tokens=5, max_tokens=value)


def test_reasoning_efforts_are_ways_to_think() -> None:
    """OAI-2, API-9"""
    efforts = ["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max", "High", None]
    thinks = [False, "low", "low", "medium", "high", "max", "max", "max", "high", None]
    assert [read_effort(effort) for effort in efforts] == thinks
    for strange in ("", "hard", True, 3):
        with pytest.raises(RequestError, match=r"reasoning_effort is .*; it must be one of none"):
            read_effort(strange)


def test_tools_are_kept_as_they_were_sent() -> None:
    """API-10: order and fields that we do not know included."""
    assert read_tools([TOOL], None) == [TOOL]
    tools = read_tools([TOOL], "auto")
    assert tools is not None
    assert list(tools[0]["function"]["parameters"]["properties"]) == ["z", "a"]
    assert read_tools([TOOL], "none") is None
    assert read_tools(None, "auto") is None
    assert read_tools([], None) is None


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ({"type": "custom", "custom": {"name": "x"}}, r"tools\[1\].type is 'custom'"),
        ({"function": {"name": "x"}}, r"tools\[1\].type is None"),
        ({"type": "function"}, r"tools\[1\].function must be"),
        ({"type": "function", "function": {"name": None}}, r"tools\[1\].function must be"),
        (
            {"type": "function", "function": {"name": "x", "parameters": []}},
            r"tools\[1\].function.parameters must be",
        ),
    ],
)
def test_what_is_no_function_tool_is_refused(tool: dict[str, object], message: str) -> None:
    """API-10"""
    with pytest.raises(RequestError, match=message):
        read_tools([TOOL, tool], None)


def test_a_forced_call_is_refused_and_not_forgotten() -> None:
    """OAI-2: it takes a grammar."""
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        with pytest.raises(
            UnsupportedError, match=r"tool_choice .* is not supported yet; use auto"
        ):
            read_tools([TOOL], choice)
    for choice in ("any", 1, []):
        with pytest.raises(RequestError, match=r"tool_choice is .*; it must be auto or none"):
            read_tools([TOOL], choice)


def test_a_call_has_an_id_and_its_arguments_as_text() -> None:
    """E05, API-10"""
    call = ToolCall(name="f", arguments={"z": 'a "quoted" \\ 😀', "a": [1, None]})
    assert call_arguments(call) == r'{"z":"a \"quoted\" \\ 😀","a":[1,null]}'
    assert call_arguments(ToolCall(name="f", arguments="no {json")) == "no {json"
    assert call_arguments(ToolCall(name="f")) == "{}"
    assert call_id(ToolCall(name="f", id="call_mine")) == "call_mine"
    made = {call_id(call) for _ in range(20)}
    assert len(made) == 20
    assert all(id.startswith("call_") and len(id) == 13 for id in made)


def format_of(given: object) -> object:
    return read_format(msgspec.convert(given, ResponseFormat | None))


def test_response_formats() -> None:
    """OAI-2"""
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert format_of(None) is None
    assert format_of({"type": "text"}) is None
    assert format_of({"type": "json_object"}) == "json"
    named = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    assert format_of(named) == schema
    for wrong in ({"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "x"}}):
        with pytest.raises(RequestError, match=r"response_format .* lacks its schema"):
            format_of(wrong)
    with pytest.raises(RequestError, match=r"response_format.type is 'xml'; it must be text"):
        format_of({"type": "xml"})


def test_roles_are_those_of_templates() -> None:
    """OAI-2"""
    roles = ["system", "developer", "User", "assistant", "tool", "function"]
    messages = chat(*({"role": role, "content": "x"} for role in roles))
    assert [message.role for message in messages] == [
        "system",
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    with pytest.raises(RequestError, match=r"messages\[1\].role is 'king'; it must be one of"):
        chat({"role": "user"}, {"role": "king"})


def test_content_is_text_parts_or_nothing() -> None:
    """OAI-3, E13, E15"""
    for text in (None, "", "hi"):
        assert chat({"role": "user", "content": text})[0].content == text
    assert chat({"role": "user", "content": []})[0].content == []
    parts = [
        {"type": "text", "text": "a"},
        {"type": "text", "text": ""},
        {"type": "text", "text": None},
        {"type": "refusal", "refusal": "no"},
    ]
    assert chat({"role": "assistant", "content": parts})[0].content == [
        ContentPart(type="text", text=text) for text in ("a", "", "", "no")
    ]
    refused = chat({"role": "assistant", "content": None, "refusal": "no"})
    assert refused[0].content == "no"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "data:image/png;base64,AA"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "hologram"},
    ],
)
def test_media_is_refused_by_its_place_and_kind(part: dict[str, object]) -> None:
    """OAI-3, H03: as a string and as an object; never silently dropped."""
    content = [{"type": "text", "text": "what is this?"}, part]
    where = rf"messages\[1\].content\[1\] is of type '?{part['type']}"
    with pytest.raises(RequestError, match=where):
        chat({"role": "user", "content": "hi"}, {"role": "user", "content": content})


def test_an_empty_list_of_messages_is_refused() -> None:
    """E15"""
    with pytest.raises(RequestError, match=r"messages is empty; send at least one"):
        chat()


def call(arguments: object, id: str | None = "call_1") -> dict[str, object]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "tool_calls": [{"id": id, "type": "function", "function": function}],
    }


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('{"city": "東京 😀"}', {"city": "東京 😀"}),
        ({"city": "x"}, {"city": "x"}),
        ("", {}),
        (None, {}),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_of_earlier_calls_are_objects_where_they_are_json(
    sent: object, read: object
) -> None:
    """E05, E13"""
    calls = chat(call(sent))[0].tool_calls
    assert calls == [ToolCall(name="f", arguments=read, id="call_1")]


def test_a_tools_answer_is_named_after_its_call() -> None:
    """OAI-2"""
    answer = {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}
    assert chat(call("{}"), answer)[1].tool_name == "f"
    assert chat(call("{}"), {**answer, "name": "own"})[1].tool_name == "own"
    assert chat(call("{}"), {**answer, "tool_call_id": "call_2"})[1].tool_name is None
    assert chat(call("{}", None), {**answer, "tool_call_id": None})[1].tool_name is None
    assert chat({"role": "user", "content": "x", "name": "Ann"})[0].tool_name is None


def test_the_old_form_of_a_call_is_a_call() -> None:
    """OAI-2"""
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert chat(old)[0].tool_calls == [ToolCall(name="f", arguments={})]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_thinking_comes_back_under_every_name_it_has(name: str) -> None:
    """OAI-4"""
    assert chat({"role": "assistant", "content": "x", name: "hm"})[0].thinking == "hm"


def test_usage_adds_up() -> None:
    """OAI-4"""
    figures = Figures(
        prompt_tokens=10,
        cached_tokens=4,
        generated_tokens=7,
        prompt_seconds=1,
        generation_seconds=1,
    )
    plain = msgspec.to_builtins(usage_of(figures))
    assert plain == {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    drafted = msgspec.structs.replace(figures, drafted_tokens=6, accepted_tokens=5)
    assert msgspec.to_builtins(usage_of(drafted))["completion_tokens_details"] == {
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 1,
    }
    thought = msgspec.structs.replace(figures, thinking_tokens=3)
    assert msgspec.to_builtins(usage_of(thought))["completion_tokens_details"] == {
        "reasoning_tokens": 3
    }
