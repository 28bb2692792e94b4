"""One answer of /v1/responses: an object, or events that end with it (spec 08 OAI-9)."""

import time
from collections.abc import Iterable

from msgspec import to_builtins

from forerun.api.openai import sse
from forerun.api.openai.responses_items import OutputItems, new_id
from forerun.api.openai.responses_wire import ResponsesRequest
from forerun.api.openai.sampling import DEFAULTS
from forerun.base.errors import ForerunError, one_line
from forerun.base.json_types import JsonObject, JsonValue
from forerun.protocol.events import Chunk, Done, Figures, Progress
from forerun.scheduler.scheduler import Lease
from forerun.store.manifest import encode_json

CUT = "length"  # the reason of an answer that its budget ended


class ResponsesDialect:
    """The `Dialect` of one request. The last event holds the object of a whole answer."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, asked: ResponsesRequest) -> None:
        """`asked` has been checked."""
        self._echo = _echo(asked)
        self._id = new_id("resp")
        self._created_at = int(time.time())
        self._items = OutputItems()
        self._events = 0

    def leased(self, lease: Lease) -> None:
        """Nothing of the loaded model is told."""

    def event(self, event: Progress | Chunk) -> bytes:
        begun = self._begun()
        return begun + self._sent(self._items.take(event)) if isinstance(event, Chunk) else begun

    def quiet(self) -> bytes:
        return sse.QUIET

    def done(self, done: Done) -> bytes:
        begun, rest = self._begun(), self._sent(self._items.end(cut=done.reason == CUT))
        return begun + rest + self._ended(self._finished(done))

    def failed(self, error: ForerunError) -> bytes:
        """What was said before the failure stays in the object."""
        begun, rest = self._begun(), self._sent(self._items.end(cut=True))
        told: JsonObject = {"code": "server_error", "message": one_line(error)}
        return begun + rest + self._ended(self._object("failed", error=told))

    def whole(self, chunk: Chunk, done: Done) -> bytes:
        for _ in (*self._items.take(chunk), *self._items.end(cut=done.reason == CUT)):
            pass  # nobody reads the events
        return encode_json(self._finished(done))

    def refusal(self, error: ForerunError) -> bytes:
        return sse.refusal(error)

    def _begun(self) -> bytes:
        if self._events:
            return b""
        response = self._object("in_progress")
        names = ("response.created", "response.in_progress")
        return self._sent({"type": name, "response": response} for name in names)

    def _ended(self, response: JsonObject) -> bytes:
        return self._sent([{"type": f"response.{response['status']}", "response": response}])

    def _sent(self, events: Iterable[JsonObject]) -> bytes:
        return b"".join(map(self._numbered, events))

    def _numbered(self, event: JsonObject) -> bytes:
        data = encode_json({"type": event["type"], "sequence_number": self._events, **event})
        self._events += 1
        return b"event: " + str(event["type"]).encode() + b"\ndata: " + data + b"\n\n"

    def _finished(self, done: Done) -> JsonObject:
        status = "incomplete" if done.reason == CUT else "completed"
        return self._object(status, usage=_usage(done.figures))

    def _object(
        self, status: str, *, usage: JsonValue = None, error: JsonValue = None
    ) -> JsonObject:
        cut: JsonObject = {"reason": "max_output_tokens"}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": error,
            "incomplete_details": cut if status == "incomplete" else None,
            "output": self._items.items,
            "usage": usage,
            **self._echo,
        }


def _usage(figures: Figures) -> JsonObject:
    drafting = figures.drafting  # ours, as in chat completions
    return {
        "input_tokens": figures.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": figures.cached_tokens,
            "cache_write_tokens": figures.prompt_tokens - figures.cached_tokens,
        },
        "output_tokens": figures.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": figures.thinking_tokens},
        "total_tokens": figures.prompt_tokens + figures.generated_tokens,
        **({} if drafting is None else {"drafting": to_builtins(drafting)}),
    }


def _echo(asked: ResponsesRequest) -> JsonObject:
    """What the client said, defaults filled in; whatever it said, nothing is stored or cut."""
    reasoning = asked.reasoning
    return {
        "model": asked.model,
        "instructions": asked.instructions,
        "max_output_tokens": _number(asked.max_output_tokens, None),
        "metadata": {**asked.metadata} if asked.metadata else {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "store": False,
        "background": False,
        "temperature": _number(asked.temperature, DEFAULTS["temperature"]),
        "text": {"format": _format(asked)},
        "tool_choice": asked.tool_choice or "auto",
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": bool(tool.strict),
            }
            for tool in asked.tools or []
        ],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": _number(asked.top_p, DEFAULTS["top_p"]),
        "truncation": "disabled",
        "user": asked.user,
    }


def _number(given: object, default: float | None) -> JsonValue:
    """What was checked when the request was read."""
    return given if isinstance(given, int | float) else default


def _format(asked: ResponsesRequest) -> JsonObject:
    form = asked.text.format if asked.text else None
    if form is None or form.type is None:
        return {"type": "text"}
    named: JsonObject = {"type": form.type}
    return named if form.schema is None else {**named, "name": form.name, "schema": form.schema}
