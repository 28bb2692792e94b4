"""A model of a server that is up, asked through the server's native API."""

import json
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager

from forerun.base.errors import NotFoundError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.cli.list import table
from forerun.cli.places import OpenModel
from forerun.cli.progress import say_cut_context, shown
from forerun.cli.sections import drafter_rows
from forerun.client.server import NoServerError, ServerClient
from forerun.protocol.cache import CacheReport
from forerun.protocol.codec import build, encode
from forerun.protocol.events import Chunk, Done, Drafting, Figures, Progress
from forerun.protocol.requests import CompletionRequest, ToolCall
from forerun.scheduler.runners import LoadOptions
from forerun.store.modelfile import Modelfile
from forerun.store.names import ModelName

NANOSECONDS = 1e9
NOTHING = "none"


class ServedPlace:
    """A `Place`."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client

    @contextmanager
    def opened(self, name: ModelName, options: LoadOptions) -> Iterator[OpenModel]:
        try:
            load_s = self._load(name, options)
        except NotFoundError:
            self._pull(name)
            load_s = self._load(name, options)
        for entry in self._client.loaded():
            length = entry.get("context_length")
            if ModelName.parse(str(entry.get("name"))) == name and isinstance(length, int):
                say_cut_context(options, length)
        yield _ServedModel(self._client, name, load_s)

    def has(self, name: ModelName) -> bool:
        try:
            self._client.post("/api/show", {"model": str(name)})
        except NotFoundError:
            return False
        return True

    def section(self, name: ModelName, section: str) -> str:
        found = self._client.post("/api/show", {"model": str(name)})
        if section != "info":
            return _text(found, section) or NOTHING
        return _info(name, found, self._client.drafters(str(name)))

    def create(self, name: ModelName, made: Modelfile) -> None:
        messages: list[JsonValue] = [
            {"role": each.role, "content": each.content} for each in made.messages
        ]
        parameters: JsonObject = json.loads(json.dumps(made.parameters))
        request: JsonObject = {
            "model": str(name),
            "from": made.source,
            "parameters": parameters,
            "system": made.system,
            "messages": messages,
        }
        self._follow("/api/create", request)

    def _load(self, name: ModelName, options: LoadOptions) -> float:
        """How long it took; how far it is, a server does not say."""
        given: JsonObject = {"num_ctx": options.num_ctx, "num_thread": options.num_thread}
        if options.device == "cpu":
            given["num_gpu"] = 0
        with shown(sys.stderr.isatty(), lines=False) as show:
            show(f"loading {name}", None, None)
            body: JsonObject = {"model": str(name), "options": given, "stream": False}
            return _seconds(self._client.post("/api/chat", body), "load_duration")

    def _pull(self, name: ModelName) -> None:
        self._follow("/api/pull", {"model": str(name)})

    def _follow(self, path: str, request: JsonObject) -> None:
        """Show the progress of a pull or create until it succeeded."""
        with (
            shown(sys.stderr.isatty()) as show,
            closing(self._client.stream(path, request)) as lines,
        ):
            for line in lines:
                completed, total = _count(line, "completed"), _count(line, "total")
                show(_text(line, "status"), completed, total or None)


class _ServedModel:
    """An `OpenModel`. The server loads it again whenever it has unloaded it."""

    gone = False

    def __init__(self, client: ServerClient, name: ModelName, load_s: float) -> None:
        self._client = client
        self._name = name
        self._load_s = load_s

    def complete(
        self, request: CompletionRequest
    ) -> Generator[Progress | Chunk | Done, None, None]:
        path = "/api/chat" if request.prompt is None else "/api/generate"
        with closing(self._client.stream(path, _body(self._name, request))) as lines:
            for line in lines:
                if isinstance(progress := line.get("progress"), dict):
                    yield Progress(
                        processed=_count(progress, "processed"), total=_count(progress, "total")
                    )
                chunk = _chunk(line)
                if chunk != Chunk():
                    yield chunk
                if line.get("done") is True:
                    figures = _figures(line, self._load_s)
                    yield Done(reason=_text(line, "done_reason"), figures=figures)
                    return
        raise NoServerError(f"the server at {self._client.address} broke off its answer")

    def cache(self, *, clear: bool = False) -> CacheReport:
        asked: JsonObject = {"model": str(self._name), "clear": clear}
        return read_cache(self._client.post("/api/cache", asked))


def read_cache(found: JsonObject) -> CacheReport:
    """What /api/cache says, without whose it is."""
    return build({key: value for key, value in found.items() if key != "model"}, CacheReport)


def _info(name: ModelName, found: JsonObject, drafters: Sequence[str]) -> str:
    details, able = found.get("details"), found.get("capabilities")
    rows = [["name", str(name)]]
    if isinstance(details, dict):
        rows += [[key.replace("_", " "), _shown(value)] for key, value in details.items() if value]
    if isinstance(able, list):
        rows.append(["capabilities", ", ".join(map(str, able)) or NOTHING])
    rows += [["parameter", line] for line in _text(found, "parameters").splitlines()]
    return table(["", ""], rows + drafter_rows(drafters)).lstrip()


def _shown(value: JsonValue) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _body(name: ModelName, request: CompletionRequest) -> JsonObject:
    plain: JsonObject = json.loads(encode(request))
    body: JsonObject = {"model": str(name), "options": plain.get("options", {})}
    if request.think is not None:
        body["think"] = request.think
    if request.prompt is not None:
        return {**body, "prompt": request.prompt, "raw": True}
    messages = plain.get("messages")
    assert isinstance(messages, list), "a request has a prompt or messages"
    return {**body, "messages": [_message(each) for each in messages]}


def _message(message: JsonValue) -> JsonValue:
    assert isinstance(message, dict), message
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [{"function": call} for call in calls]}


def _chunk(line: JsonObject) -> Chunk:
    message = line.get("message")
    said = message if isinstance(message, dict) else line
    calls = said.get("tool_calls")
    return Chunk(
        thinking=_text(said, "thinking"),
        text=_text(said, "content") or _text(said, "response"),
        tool_calls=[_call(call) for call in calls] if isinstance(calls, list) else [],
    )


def _call(call: JsonValue) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    found = function if isinstance(function, dict) else {}
    return ToolCall(name=_text(found, "name"), arguments=found.get("arguments"))


def _figures(line: JsonObject, load_s: float) -> Figures:
    drafting = line.get("drafting")
    return Figures(
        prompt_tokens=_count(line, "prompt_eval_count"),
        cached_tokens=_count(line, "cached_count"),
        generated_tokens=_count(line, "eval_count"),
        prompt_seconds=_seconds(line, "prompt_eval_duration"),
        generation_seconds=_seconds(line, "eval_duration"),
        drafted_tokens=_count(line, "drafted_count"),
        accepted_tokens=_count(line, "accepted_count"),
        drafting=build(drafting, Drafting) if drafting is not None else None,
        load_seconds=load_s,
        first_token_seconds=_seconds(line, "first_token_duration"),
    )


def _seconds(line: JsonObject, name: str) -> float:
    return _count(line, name) / NANOSECONDS


def _count(line: JsonObject, name: str) -> int:
    value = line.get(name)
    return value if isinstance(value, int) else 0


def _text(line: JsonObject, name: str) -> str:
    value = line.get(name)
    return value if isinstance(value, str) else ""
