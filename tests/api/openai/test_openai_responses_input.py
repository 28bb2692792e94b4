"""What a Responses request becomes: messages, tools, options (08 OAI-9, OAI-6, OAI-2, E13, E15)."""

import msgspec
import pytest

from forerun.api.openai.responses import read_ask
from forerun.api.openai.responses_wire import ResponsesRequest
from forerun.base.errors import RequestError, UnsupportedError
from forerun.protocol.requests import CompletionRequest, Message, ToolCall

CALL = {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "3"}


def read(**fields: object) -> CompletionRequest:
    asked = msgspec.convert({"model": "m", "input": "hi", **fields}, ResponsesRequest)
    request = read_ask(asked).request
    assert request is not None
    return request


def messages(*items: object, **fields: object) -> list[Message]:
    return read(input=list(items), **fields).messages or []


def test_a_text_is_one_message_of_the_user():
    assert read().messages == [Message(role="user", content="hi")]


def test_instructions_are_the_system_message_and_come_first():
    assert messages({"role": "user", "content": "hi"}, instructions="Be brief.") == [
        Message(role="system", content="Be brief."),
        Message(role="user", content="hi"),
    ]


def test_what_developers_say_next_joins_the_instructions_since_templates_take_one_system_message():
    given = messages(
        {"role": "developer", "content": "In French."},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "Now in German."},
        instructions="Be brief.",
    )
    assert [(each.role, each.content) for each in given] == [
        ("system", "Be brief.\n\nIn French."),
        ("user", "hi"),
        ("system", "Now in German."),
    ]


def test_parts_of_text_are_joined():
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer = [{"type": "output_text", "text": "c", "annotations": []}]
    refusal = [{"type": "refusal", "refusal": "no"}]
    given = messages(
        {"type": "message", "role": "user", "content": parts},
        {"type": "message", "role": "assistant", "content": answer, "id": "msg_1"},
        {"role": "user", "content": []},
        {"role": "assistant", "content": refusal},
    )
    assert [each.content for each in given] == ["ab", "c", "", "no"]


def test_items_of_one_turn_are_one_message():
    """OAI-9: what /v1/responses gave is what it takes back."""
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text"}]}
    thought["content"][0]["text"] = "hm"
    given = messages(
        {"role": "user", "content": "1+2?"},
        thought,
        {"role": "assistant", "content": "I add."},
        CALL,
        {**CALL, "call_id": "call_2", "arguments": "not json"},
        OUTPUT,
        {**OUTPUT, "call_id": "call_2", "output": [{"type": "input_text", "text": "4"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ah"}]},
        {"role": "assistant", "content": "3"},
        {"role": "assistant", "content": "or 4"},
    )
    assert given == [
        Message(role="user", content="1+2?"),
        Message(
            role="assistant",
            content="I add.",
            thinking="hm",
            tool_calls=[
                ToolCall(name="add", arguments={"a": 1}, id="call_1"),
                ToolCall(name="add", arguments="not json", id="call_2"),
            ],
        ),
        Message(role="tool", content="3", tool_call_id="call_1", tool_name="add"),
        Message(role="tool", content="4", tool_call_id="call_2", tool_name="add"),
        Message(role="assistant", content="3", thinking="ah"),
        Message(role="assistant", content="or 4"),
    ]


def test_a_thought_after_a_call_begins_a_turn():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ah"}]}
    first, second = messages(CALL, thought)
    assert (first.thinking, second.thinking, second.tool_calls) == (None, "ah", None)


def test_encrypted_thoughts_are_left_out():
    given = messages(
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "encrypted_content": "xyz"},
    )
    assert [each.role for each in given] == ["user"]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "item_reference", "id": "msg_1"}, "not stored"),
        ({"type": "computer_call"}, "'computer_call'"),
        ({"role": "wizard", "content": "hi"}, "'wizard'"),
        ({"content": "hi"}, "role"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "'input_image'"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "'input_file'"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "'input_audio'"),
        ({"type": "function_call", "call_id": "call_1"}, "name"),
        ({"type": "function_call", "name": "add"}, "call_id"),
        ({"type": "function_call_output", "output": "3"}, "call_id"),
        ({**OUTPUT, "output": [{"type": "input_image"}]}, "output[0]"),
    ],
)
def test_other_items_are_refused_by_name(item: dict[str, object], said: str):
    """OAI-6, OAI-9: the place in the input and the value at fault are named."""
    with pytest.raises(RequestError) as refused:
        messages({"role": "user", "content": "hi"}, item)
    assert "input[1]" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize("given", [None, []])
def test_an_empty_input_is_refused(given: object):
    """E15."""
    with pytest.raises(RequestError, match="input is empty"):
        read(input=given)


def test_empty_texts_are_fine():
    """E15."""
    assert read(input="").messages == [Message(role="user", content="")]
    parts = [{"type": "input_text", "text": ""}]
    assert messages({"role": "user", "content": parts}, {"role": "user"})[1].content == ""


def test_functions_are_offered_in_the_form_that_templates_read():
    parameters = {"type": "object", "properties": {"b": {}, "a": {}}}
    tool = {"type": "function", "name": "add", "parameters": parameters, "strict": True}
    assert read(tools=[tool]).tools == [
        {"type": "function", "function": {"name": "add", "parameters": parameters}}
    ]
    assert read(tools=[tool], tool_choice="none").tools is None
    assert read(tools=[tool], tool_choice="auto").tools


@pytest.mark.parametrize("kind", ["web_search", "file_search", "custom", "mcp"])
def test_other_tools_are_refused_by_name(kind: str):
    with pytest.raises(RequestError, match=kind):
        read(tools=[{"type": kind, "name": "x"}])


def test_a_forced_call_is_not_offered_yet():
    with pytest.raises(UnsupportedError, match="required"):
        read(tools=[{"type": "function", "name": "add"}], tool_choice="required")


@pytest.mark.parametrize(
    ("effort", "think"), [("none", False), ("minimal", "low"), ("high", "high"), ("xhigh", "max")]
)
def test_effort_is_thinking(effort: str, think: object):
    """OAI-2."""
    assert read(reasoning={"effort": effort, "summary": "auto"}).think == think


def test_without_an_effort_the_model_decides():
    assert read(reasoning={"summary": "auto"}).think is None


def test_a_wrong_effort_names_the_field():
    with pytest.raises(RequestError, match=r"reasoning\.effort is 'huge'"):
        read(reasoning={"effort": "huge"})


def test_options_have_the_defaults_of_openai():
    """OAI-2."""
    assert read().options == {"temperature": 1.0, "top_p": 1.0}
    given = read(temperature=0, top_p=0.5, max_output_tokens=7, seed=1).options
    assert given == {"temperature": 0.0, "top_p": 0.5, "num_predict": 7, "seed": 1}


def test_load_time_fields_and_keep_alive_are_those_of_chat():
    """E09."""
    asked = {"model": "m", "input": "hi", "num_ctx": 512, "keep_alive": "10m"}
    ask = read_ask(msgspec.convert(asked, ResponsesRequest))
    assert (ask.load.num_ctx, ask.keep_alive_s) == (512, 600.0)


def test_log_probabilities_are_asked_for_in_two_ways():
    asked = [read(), read(top_logprobs=2), read(include=["message.output_text.logprobs"])]
    assert [(each.logprobs, each.top_logprobs) for each in asked] == [
        (False, 0),
        (True, 2),
        (True, 0),
    ]


def test_the_form_of_the_text_is_the_runners_to_refuse():
    schema = {"type": "object"}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    assert read(text={"format": form}).format == schema
    assert read(text={"format": {"type": "json_object"}}).format == "json"
    assert read(text={"format": {"type": "text"}, "verbosity": "low"}).format is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is given"),
        ({"conversation": "conv_1"}, "conversation is given"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt is given"),
        ({"background": True}, "background"),
        ({"truncation": "middle"}, "truncation is 'middle'"),
        ({"max_output_tokens": -1}, "max_output_tokens is -1"),
        ({"max_output_tokens": "many"}, "max_output_tokens is 'many'"),
        ({"temperature": "hot"}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type is 'xml'"),
        ({"text": {"format": {"type": "json_schema"}}}, "lacks its schema"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"keep_alive": "soon"}, "keep_alive is 'soon'"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, object], said: str):
    """OAI-6, OAI-9, API-12: `truncation` auto is taken, and nothing is cut."""
    with pytest.raises(RequestError) as refused:
        read(**fields)
    assert said in str(refused.value)


def test_null_is_the_same_as_absent():
    """E13: for every optional field of the request and of an item."""
    optional = set(ResponsesRequest.__struct_fields__) - {"model", "input"}
    plain = read()
    assert all(read(**{name: None}) == plain for name in optional)
    assert read(**dict.fromkeys(optional)) == plain
    fields = ("type", "call_id", "name", "arguments", "output", "summary", "id", "status")
    item = {"role": "user", "content": "hi", **dict.fromkeys(fields)}
    assert messages(item) == plain.messages
    tool = {"type": "function", "name": "f"}
    nulls = {"description": None, "parameters": None, "strict": None}
    assert read(tools=[{**tool, **nulls}]) == read(tools=[tool])
