"""The Python API: a model in the caller's own process, by the engine that runners use (LIB).

Importing this does not import torch; `load` does.
"""

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.base.errors import ForerunError, RequestError, error_for
from forerun.base.options import OPTIONS, REQUEST_OPTIONS, check_names, check_option
from forerun.base.shown import shown
from forerun.base.units import format_bytes, parse_size
from forerun.protocol.cache import CacheReport
from forerun.protocol.codec import build
from forerun.protocol.events import Chunk, Done, Failed, Progress
from forerun.protocol.imports import ImportStatus, PullRequest
from forerun.protocol.requests import CompletionRequest, EmbedRequest
from forerun.scheduler.importing import run_import
from forerun.scheduler.runners import SPIN
from forerun.settings import Settings, prefer
from forerun.store.names import ModelName
from forerun.store.store import Store

if TYPE_CHECKING:
    from forerun.runner.service import Service
    from forerun.runner.stream import EventStream

__all__ = ["Answer", "Chunk", "Done", "Model", "ModelInfo", "load"]

REASONING = ("thinking", "reasoning_content", "reasoning")  # what clients call it in a message


def load(
    name: str,
    *,
    draft: str = "auto",
    num_ctx: int | None = None,
    cache_bytes: int | str | None = None,
    device: str | None = None,
) -> "Model":
    """Load a model of the store, or pull it first, showing progress on standard error.

    draft        what answers are drafted with unless a call says otherwise: "model" is the model's
                 own draft, "lookup" repeats what the text said before, "auto" the first of these
                 that it has, "off" decodes plainly
    num_ctx      tokens of context, prompt and answer together; None: the model's parameter, else
                 FORERUN_CONTEXT_LENGTH, else 8192 on a CPU; never above the model's own maximum
    cache_bytes  memory for conversations beside the one at hand, bytes or a size such as "1GiB",
                 0 for none; None: FORERUN_CACHE_BYTES, else a quarter of the device's memory, at
                 most 8 GiB
    device       "cpu", "cuda", "cuda:1", "mps"; None: FORERUN_DEVICE, else CUDA if there is any

    Raises NotFoundError for a name that is nowhere, LoadError for a model that does not load here,
    RequestError for an argument out of range. Two loads of one name are two models.

    >>> with forerun.load("tiny") as model:
    ...     model.info.context_length
    512
    """
    check_option("draft", draft)
    num_ctx = _whole("num_ctx", num_ctx)
    budget = _size("cache_bytes", cache_bytes)
    settings = Settings.from_environment()
    model = ModelName.parse(name)
    if not Store(settings.models).exists(model):
        _pull(model, settings)
    if "torch" not in sys.modules:
        prefer(SPIN)  # before torch's threads start; in a process that has torch they run already
    from forerun.runner.loading import load_here
    from forerun.runner.request import LoadRequest

    request = LoadRequest.under(
        settings, str(model), num_ctx=num_ctx, cache_bytes=budget, device=device
    )
    service = load_here(request)
    try:
        service.served.engine.drafters.chosen(draft)
    except RequestError:
        service.close()
        raise
    return Model(str(model), service, draft)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a loaded model is."""

    name: str
    capabilities: tuple[str, ...]  # "completion"; "tools" and "thinking" by its chat template
    context_length: int  # tokens that prompt and answer may have together
    vocab_size: int
    embedding_length: int  # dimensions of `embed`
    weight_bytes: int  # of its draft too
    device: str
    load_seconds: float


class Model:
    """A loaded model. Calls from several threads queue for the one thread that runs the device.

    A context manager; `close` frees the memory. A model used afterwards raises ForerunError.
    Threads do not survive a fork: load in the process that asks.
    """

    def __init__(self, name: str, service: "Service", draft: str) -> None:
        self._service: Service | None = service
        self._draft = draft
        engine = service.served.engine
        facts = engine.model.facts
        self.info = ModelInfo(
            name=name,
            capabilities=service.served.text.capabilities,
            context_length=engine.context,
            vocab_size=facts.vocab_size,
            embedding_length=engine.pooling.width(facts.hidden_size),
            weight_bytes=engine.weight_bytes,
            device=str(facts.device),
            load_seconds=service.served.load_s,
        )
        self._closing = weakref.finalize(self, service.close)

    def __repr__(self) -> str:
        info = self.info
        return f"<forerun.Model {info.name} on {info.device}, {info.context_length} tokens>"

    def generate(
        self, prompt: str, *, logprobs: bool = False, top_logprobs: int = 0, **options: object
    ) -> "Answer":
        """Continue `prompt`, which is trusted: control tokens in it count as such.

        logprobs      a `LogprobEntry` for each token, in the chunk of its text
        top_logprobs  0 to 20 rivals in each entry
        options       temperature, top_k, top_p, min_p, seed, num_predict, stop, logit_bias,
                      repeat_penalty, repeat_last_n, presence_penalty, frequency_penalty, draft

        Raises TypeError for an unknown option and RequestError for a value out of range or a
        prompt that does not fit, at once; what goes wrong later is raised by the answer.

        >>> model.generate("Once", num_predict=0).text()
        ''
        """
        return self._complete(
            {
                "prompt": prompt,
                "options": self._options(options),
                "logprobs": logprobs,
                "top_logprobs": top_logprobs,
            }
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
        think: bool | str | None = None,
        format: object = None,
        *,
        logprobs: bool = False,
        top_logprobs: int = 0,
        **options: object,
    ) -> "Answer":
        """Answer a chat, through the model's template.

        messages  `{"role": "user", "content": "..."}` and so on. What they say is text, whatever
                  it looks like. A last message of the assistant's is continued. Send an answer's
                  thinking and tool calls back as `thinking` and `tool_calls`, and what a tool
                  returned as `{"role": "tool", "content": "...", "tool_name": "..."}`.
        tools     function tools with JSON schemas: calls of them are in `Chunk.tool_calls`, whole
        think     whether a model that can does think before it answers, or how hard: "low",
                  "medium", "high", "max"; None: it does. Its thoughts are in `Chunk.thinking`
        format    UnsupportedError until grammars come

        The rest is as in `generate`. RequestError also for tools or thinking that
        `info.capabilities` does not name.

        >>> answer = model.chat([{"role": "user", "content": "Hi"}], num_predict=4, seed=1)
        >>> events = list(answer)
        >>> events[-1].reason, events[-1].figures.generated_tokens
        ('length', 4)
        """
        return self._complete(
            {
                "messages": [_turn(each) for each in _objects("messages", messages)],
                "tools": None if tools is None else _objects("tools", tools),
                "think": think,
                "format": format,
                "options": self._options(options),
                "logprobs": logprobs,
                "top_logprobs": top_logprobs,
            }
        )

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, no BOS added. `special` False: control tokens in it are text.

        >>> model.tokenize("hi")
        [104, 105]
        """
        return self._open().tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, control tokens included. RequestError for an id that is none.

        >>> model.detokenize([104, 105])
        'hi'
        """
        return self._open().detokenize(tokens)

    def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> list[list[float]]:
        """A vector of length 1 for each text: the model's final hidden states, pooled.

        A checkpoint for sentence-transformers says how, any other is pooled by the mean. A prompt
        that it wants before a query is the caller's to write.

        dimensions  keep so many of `info.embedding_length`, and scale to length 1 again

        Raises RequestError for an empty text or one longer than the context.

        >>> [len(vector) for vector in model.embed(["one", "two"], dimensions=8)]
        [8, 8]
        """
        if isinstance(texts, str):
            raise TypeError("texts is one text; put it into a list")
        request = EmbedRequest(texts=list(texts), dimensions=dimensions, truncate=False)
        return self._open().embed(request).vectors

    def cache(self) -> CacheReport:
        """What is kept of conversations: what `forerun cache` shows, in docs/server.md's fields.

        While an answer is under way it is what the one before left, `as_of_seconds` ago.

        >>> model.cache().context
        512
        """
        return self._open().cache()

    def clear_cache(self) -> CacheReport:
        """Forget every conversation once the answers under way are complete; what there is then.

        `freed_bytes` tells what that gave back.

        >>> model.clear_cache().nodes
        []
        """
        return self._open().clear_cache()

    def close(self) -> None:
        """Cancel what is under way and free the model. Idempotent."""
        self._service = None
        self._closing()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _complete(self, body: Mapping[str, object]) -> "Answer":
        # whoever reads slowly here holds up nobody but himself, and the context bounds an answer
        from forerun.runner.stream import StreamLimits

        limits = StreamLimits(events=sys.maxsize, size=sys.maxsize)
        return Answer(self, self._open().complete(build(body, CompletionRequest), limits))

    def _options(self, options: Mapping[str, object]) -> dict[str, object]:
        for name in options:
            if name not in OPTIONS:
                known = ", ".join(REQUEST_OPTIONS)
                raise TypeError(f"unknown option {name!r}; the options are {known}")
        check_names(options)
        return dict(options) if self._draft == "auto" else {"draft": self._draft, **options}

    def _open(self) -> "Service":
        service = self._service
        if service is None:
            raise ForerunError("the model is closed; load it again")
        return service


class Answer(Iterator[Chunk | Done]):
    """The events of one answer: any number of Chunks, then exactly one Done.

    A failure is raised instead of the Done. Closing or dropping the answer cancels it.

    >>> with model.generate("Once upon", seed=1) as answer:
    ...     first = next(answer)
    >>> type(first).__name__
    'Chunk'
    """

    def __init__(self, model: Model, stream: "EventStream") -> None:
        self._model = model  # which must live as long as its answers
        self._events = iter(stream)
        self._ended = False
        self._cancel = weakref.finalize(self, stream.cancel)

    def __next__(self) -> Chunk | Done:
        while not self._ended:
            event = next(self._events)
            if isinstance(event, Progress):
                continue
            self._ended = isinstance(event, Done | Failed)
            if isinstance(event, Failed):
                raise error_for(event.status, event.message)
            return event
        raise StopIteration

    def text(self) -> str:
        """The rest of the answer's text, once it is complete."""
        return "".join(event.text for event in self if isinstance(event, Chunk))

    def close(self) -> None:
        """Cancel the answer if it is not complete. Idempotent."""
        self._ended = True
        self._cancel()

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _whole(name: str, value: object) -> int | None:
    """An option that is a whole number, checked."""
    checked = check_option(name, value)
    assert checked is None or isinstance(checked, int), checked
    return checked


def _size(name: str, value: object) -> int | None:
    """Bytes, or a size as text. RequestError for anything else."""
    if value is None or (type(value) is int and value >= 0):
        return value
    try:
        return parse_size(value if isinstance(value, str) else "")
    except ValueError:
        raise RequestError(
            f"{name} is {shown(value)}; it must be a number of bytes or a size such as 1GiB"
        ) from None


def _objects(name: str, given: object) -> list[dict[str, object]]:
    """A list of mappings. RequestError for anything else, such as one text."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise RequestError(f"{name} is {shown(given)}; it must be a list of objects")
    for item in given:
        if not isinstance(item, Mapping):
            raise RequestError(f"{name} holds {shown(item)}; it must be a list of objects")
    return [dict(item) for item in given]


def _turn(message: dict[str, object]) -> dict[str, object]:
    """A message with its reasoning under our name, whichever of the usual ones it has."""
    turn = {name: said for name, said in message.items() if name not in REASONING}
    reasoning = [said for name in REASONING if (said := message.get(name)) is not None]
    return {**turn, "thinking": reasoning[0]} if reasoning else turn


def _pull(name: ModelName, settings: Settings) -> None:
    """Fetch a model, with its progress on standard error."""
    said = ""
    for event in run_import(PullRequest(name=str(name)), settings):
        if isinstance(event, ImportStatus) and (line := _progress_line(event)) != said:
            said = line
            sys.stderr.write(f"{line}\n")


def _progress_line(status: ImportStatus) -> str:
    """What is going on, in tenths of the whole, so that a log is not flooded."""
    if not status.total or status.completed is None:
        return status.status
    tenths = 10 * status.completed // status.total
    return f"{status.status} of {format_bytes(status.total)}: {10 * tenths} %"
