"""Server-sent events as OpenAI's clients read them (spec 08 OAI-5)."""

import json

import msgspec

from forerun.api.errors import openai_error
from forerun.base.errors import ForerunError
from forerun.protocol.codec import encode

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"
QUIET = b": the model is at work\n\n"  # a comment, which no client shows


def data(message: msgspec.Struct) -> bytes:
    """One event. JSON holds no raw line break, so it is one line."""
    return b"data: " + encode(message) + b"\n\n"


def broken_off(error: ForerunError) -> bytes:
    """The end of a stream that failed: clients raise it, and no [DONE] says that it was whole."""
    return b"data: " + refusal(error) + b"\n\n"


def refusal(error: ForerunError) -> bytes:
    """The body of an error."""
    return json.dumps(openai_error(error)).encode()
