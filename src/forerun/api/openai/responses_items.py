"""The output items of one Responses answer, and the events that tell how they grow (OAI-9)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import uuid4

from forerun.api.openai.tools import call_arguments, call_id
from forerun.base.json_types import JsonObject, JsonValue
from forerun.protocol.events import Chunk, LogprobEntry
from forerun.protocol.requests import ToolCall


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a text item is called, and its one content part and its events."""

    item: str
    id_prefix: str
    part: str


MESSAGE = _Kind("message", "msg", "output_text")
REASONING = _Kind("reasoning", "rs", "reasoning_text")


def new_id(prefix: str) -> str:
    """An id that no other object has."""
    return f"{prefix}_{uuid4().hex}"


@dataclass(slots=True)
class _Growing:
    """A text item that is not at its end."""

    kind: _Kind
    index: int
    text: list[str] = field(default_factory=list)
    logprobs: list[JsonValue] = field(default_factory=list)
    id: str = ""

    def __post_init__(self) -> None:
        self.id = new_id(self.kind.id_prefix)

    @property
    def place(self) -> JsonObject:
        """The fields by which an event says what it is about."""
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}

    def part(self) -> JsonObject:
        part: JsonObject = {"type": self.kind.part, "text": "".join(self.text)}
        if self.kind is MESSAGE:
            part |= {"annotations": [], "logprobs": list(self.logprobs)}
        return part

    def item(self, status: str, content: list[JsonValue]) -> JsonObject:
        own: JsonObject = {"role": "assistant"} if self.kind is MESSAGE else {"summary": []}
        named: JsonObject = {"id": self.id, "type": self.kind.item, "status": status}
        return {**named, **own, "content": content}


class OutputItems:
    """Items one after another: each is whole before the next one begins."""

    def __init__(self) -> None:
        self._done: list[JsonValue] = []
        self._growing: _Growing | None = None
        self._unplaced: list[JsonValue] = []  # log-probabilities of tokens before the next text

    @property
    def items(self) -> list[JsonValue]:
        """What is whole so far."""
        return list(self._done)

    def take(self, chunk: Chunk) -> Iterator[JsonObject]:
        """The events of a chunk. A message's log-probabilities are those of all tokens up to it."""
        self._unplaced.extend(_entry(entry) for entry in chunk.logprobs)
        if chunk.thinking:
            yield from self._grow(REASONING, chunk.thinking)
        if chunk.text or (self._unplaced and self._is_message()):
            yield from self._grow(MESSAGE, chunk.text)
        for call in chunk.tool_calls:
            yield from self._end_growing("completed")
            yield from self._call(call)

    def end(self, *, cut: bool) -> Iterator[JsonObject]:
        """The events after the last chunk; an answer always has an item.

        cut  the answer is not whole: neither is its last text
        """
        if not self._done and self._growing is None:
            yield from self._grow(MESSAGE, "")
        yield from self._end_growing("incomplete" if cut else "completed")

    def _is_message(self) -> bool:
        return self._growing is not None and self._growing.kind is MESSAGE

    def _grow(self, kind: _Kind, text: str) -> Iterator[JsonObject]:
        growing = self._growing
        if growing is None or growing.kind is not kind:
            yield from self._end_growing("completed")
            growing = self._growing = _Growing(kind, len(self._done))
            yield _added(growing.index, growing.item("in_progress", []))
            part = growing.part()
            yield {"type": "response.content_part.added", **growing.place, "part": part}
        growing.text.append(text)
        delta: JsonObject = {"type": f"response.{kind.part}.delta", **growing.place, "delta": text}
        if kind is MESSAGE:
            entries, self._unplaced = self._unplaced, []
            growing.logprobs += entries
            delta["logprobs"] = entries
        if text or delta.get("logprobs"):
            yield delta

    def _end_growing(self, status: str) -> Iterator[JsonObject]:
        growing, self._growing = self._growing, None
        if growing is None:
            return
        part = growing.part()
        told: JsonObject = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield {"type": f"response.{growing.kind.part}.done", **growing.place, **told}
        yield {"type": "response.content_part.done", **growing.place, "part": part}
        yield self._whole(growing.item(status, [part]))

    def _call(self, call: ToolCall) -> Iterator[JsonObject]:
        """A call comes whole, so its arguments are one delta."""
        arguments = call_arguments(call)
        item: JsonObject = {
            "id": new_id("fc"),
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id(call),
            "name": call.name,
            "arguments": "",
        }
        index = len(self._done)
        yield _added(index, item)
        place: JsonObject = {"item_id": item["id"], "output_index": index}
        events = "response.function_call_arguments"
        yield {"type": f"{events}.delta", **place, "delta": arguments}
        yield {"type": f"{events}.done", **place, "name": call.name, "arguments": arguments}
        yield self._whole({**item, "status": "completed", "arguments": arguments})

    def _whole(self, item: JsonObject) -> JsonObject:
        index = len(self._done)
        self._done.append(item)
        return {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: JsonObject) -> JsonObject:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def _entry(entry: LogprobEntry) -> JsonObject:
    rivals: list[JsonValue] = [
        {"token": rival.token, "logprob": rival.logprob, "bytes": list(rival.bytes)}
        for rival in entry.top_logprobs
    ]
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": list(entry.bytes),
        "top_logprobs": rivals,
    }
