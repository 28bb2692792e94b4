"""/v1/responses through the official client, a real server and a real runner (08 OAI-9).

The client speaks every way it has: create, create with a stream, and its streaming helper.
"""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from fixtures.scripted import PLAIN, scripted_store
from fixtures.server import Server, scripted_server

MODEL = "scripted"
HARD = "naïve 👩‍💻 日本 \ufffd"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = scripted_store(tmp_path_factory.mktemp("responses"), template=PLAIN)
    with scripted_server(settings) as server:
        yield server


def test_create(client: OpenAI):
    """OAI-4, OAI-9."""
    answer = client.responses.create(model=MODEL, input="SAY:hello", metadata={"a": "b"})
    assert answer.output_text == "hello"
    assert (answer.status, answer.object, answer.model) == ("completed", "response", MODEL)
    assert answer.id.startswith("resp_")
    assert answer.metadata == {"a": "b"}
    assert answer.usage is not None
    assert answer.usage.output_tokens == len("hello")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_stream_is_the_same_answer(client: OpenAI):
    """OAI-5, OAI-9: the helper of the client follows it to its end."""
    text = f"SAY:{HARD}"
    whole = client.responses.create(model=MODEL, input=text)
    with client.responses.stream(model=MODEL, input=text) as stream:
        deltas = [each.delta for each in stream if each.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert whole.output_text == "".join(deltas) == last.output_text == HARD
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.output_tokens == whole.usage.output_tokens


def test_the_events_of_a_stream(client: OpenAI):
    events = list(client.responses.create(model=MODEL, input="SAY:hello", stream=True))
    assert [each.sequence_number for each in events] == list(range(len(events)))
    kinds = [each.type for each in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert kinds.count("response.completed") == 1


def test_the_head_of_a_stream(client: OpenAI):
    """OAI-5."""
    raw = client.responses.with_streaming_response
    with raw.create(model=MODEL, input="SAY:x", stream=True) as answer:
        body = b"".join(answer.iter_bytes())
        assert answer.headers["content-type"].startswith("text/event-stream")
    assert body.startswith(b"event: response.created\ndata: {")
    assert body.endswith(b"\n\n")


def test_a_conversation_goes_on_with_the_items_of_the_answer(client: OpenAI):
    """OAI-9: output items are input items."""
    first = client.responses.create(model=MODEL, input="SAY:one")
    items = [each.model_dump(exclude_none=True) for each in first.output]
    again = client.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "SAY:one"},
            *items,
            {"role": "user", "content": [{"type": "input_text", "text": "SAY:two"}]},
        ],
    )
    assert again.output_text == "two"


@pytest.mark.parametrize("stream", [False, True])
def test_the_budget_ends_an_answer_as_incomplete(client: OpenAI, stream: bool):
    """D15, E03: a cut character is left out of the text in both ways."""
    asked = {"model": MODEL, "input": "SAY:ab👩", "max_output_tokens": 4}
    if stream:
        *_, last = client.responses.create(**asked, stream=True)
        assert last.type == "response.incomplete"
        answer = last.response
    else:
        answer = client.responses.create(**asked)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "ab"


def test_no_budget_evaluates_the_prompt_alone(client: OpenAI):
    answer = client.responses.create(model=MODEL, input="SAY:a", max_output_tokens=0)
    assert (answer.output_text, answer.status) == ("", "incomplete")
    assert answer.usage is not None
    assert answer.usage.input_tokens > 0


def test_log_probabilities(client: OpenAI):
    answer = client.responses.create(model=MODEL, input="SAY:ab", top_logprobs=2)
    (message,) = answer.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [entry.token for entry in part.logprobs][:2] == ["a", "b"]
    assert [len(entry.top_logprobs) for entry in part.logprobs][:2] == [2, 2]


def test_a_failure_in_the_middle_is_told_in_the_stream(client: OpenAI):
    """OAI-6: exactly one end, and the server answers on."""
    events = list(client.responses.create(model=MODEL, input="FAIL_AT=3 SAY:abcdef", stream=True))
    assert events[-1].type == "response.failed"
    error = events[-1].response.error
    assert error is not None
    assert "told to fail" in error.message
    assert sum(each.type == "response.failed" for each in events) == 1
    assert client.responses.create(model=MODEL, input="SAY:on").output_text == "on"


def test_a_failure_before_the_answer_has_a_status(client: OpenAI):
    with pytest.raises(openai.InternalServerError, match="told to fail"):
        client.responses.create(model=MODEL, input="FAIL_AT=1 SAY:abc")


def test_unknown_models(client: OpenAI):
    """OAI-6."""
    with pytest.raises(openai.NotFoundError) as refused:
        client.responses.create(model="nobody", input="hi")
    assert refused.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"previous_response_id": "resp_1"}, "not stored"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "not stored"),
        ({"input": []}, "input is empty"),
        ({"tools": [{"type": "web_search"}]}, "web_search"),
        ({"input": "x" * 9000, "truncation": "auto"}, "8192"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs is 21"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_are_told_before_the_stream(
    client: OpenAI, fields: dict[str, object], said: str, stream: bool
):
    """OAI-6, API-12: status 400 in both ways, in the words of OpenAI's errors."""
    asked = {"model": MODEL, "input": "hi", "stream": stream, **fields}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**asked)
    assert said in refused.value.message
    assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("form", [{"type": "json_object"}, {"type": "json_schema"}])
def test_formats_are_refused_until_they_can_be_kept(client: OpenAI, form: dict[str, object]):
    form = {**form, "name": "x", "schema": {"type": "object"}}
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(model=MODEL, input="hi", text={"format": form})
    assert refused.value.status_code == 501


def test_a_client_that_leaves_frees_the_model(client: OpenAI):
    """E11."""
    asked = {"model": MODEL, "input": "ENDLESS TOKEN_MS=5 SAY:abc", "stream": True}
    with client.responses.create(**asked) as events:
        next(event for event in events if event.type == "response.output_text.delta")
    answer = client.with_options(timeout=20).responses.create(model=MODEL, input="SAY:free")
    assert answer.output_text == "free"
