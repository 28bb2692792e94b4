"""Messages between processes survive the wire, and a malformed one is refused by its field."""

import pytest

from forerun.base.errors import RequestError
from forerun.protocol.codec import decode, encode, encode_line
from forerun.protocol.events import Chunk, Done, Event, Failed, Figures, LogprobEntry, Progress
from forerun.protocol.imports import CreateRequest, ImportRequest, PullRequest
from forerun.protocol.requests import CompletionRequest, Message, ToolCall
from forerun.protocol.status import Memory, RunnerStatus

FIGURES = Figures(
    prompt_tokens=3,
    cached_tokens=1,
    generated_tokens=2,
    prompt_seconds=0.5,
    generation_seconds=0.25,
)


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Chunk(text="日本", logprobs=[LogprobEntry(token="a", logprob=-1, bytes=[97])]), Event),
        (Progress(processed=1, total=2), Event),
        (Done(reason="stop", figures=FIGURES), Event),
        (Failed(status=400, message="no"), Event),
        (PullRequest(name="m"), ImportRequest),
        (CreateRequest(name="m", modelfile="FROM .", folder="/"), ImportRequest),
        (RunnerStatus(state="ready", memory=Memory(weights=5)), RunnerStatus),
        (
            CompletionRequest(
                messages=[Message(role="user", tool_calls=[ToolCall(name="f", arguments={"a": 1})])]
            ),
            CompletionRequest,
        ),
    ],
)
def test_a_message_survives_the_wire(message, kind) -> None:
    assert decode(encode(message), kind) == message
    assert encode_line(message).count(b"\n") == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"promt": "x"}', "promt"),
        (b'{"prompt": 5}', "prompt"),
        (b'{"messages": [{"content": "x"}]}', "role"),
        (b'{"prompt": "x"', "malformed"),
        (b"\xff", "malformed"),
        (b"", "malformed"),
        (b"[" * 100_000, "malformed"),
    ],
)
def test_a_malformed_body_names_what_is_wrong(body: bytes, named: str) -> None:
    """05 HTP-3: a malformed body is a 400."""
    with pytest.raises(RequestError, match=named):
        decode(body, CompletionRequest)


def test_text_that_is_no_unicode_is_refused_by_its_characters() -> None:
    """An argument of bytes that are not UTF-8 arrives as half surrogates."""
    with pytest.raises(RequestError, match=r"\\udcff.*not valid UTF-8"):
        encode(CompletionRequest(prompt="a\udcffb"))
