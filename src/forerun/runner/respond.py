"""From tokens to events: text, stop strings, channels and log-probabilities.

Spec 05 UTF, STP; 04 LGP-4; 08 PAR-1. Tokens and their log-probabilities wait with their text, also
where a tag or a tool call holds it back; those of a tag go out with what follows it.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.base.errors import CancelledError, ForerunError, one_line
from forerun.chat.dialects.channels import Channels
from forerun.chat.dialects.pieces import Piece, chunks
from forerun.chat.stops import StopMatcher
from forerun.contract.decoder import TokenLogprob
from forerun.contract.sink import DoneReason
from forerun.contract.sink import Drafting as CountedDrafting
from forerun.contract.sink import Figures as Counted
from forerun.protocol.events import (
    Chunk,
    Done,
    DraftDepth,
    Drafting,
    DraftPosition,
    Failed,
    Figures,
    LogprobEntry,
    Progress,
    TopLogprob,
)
from forerun.runner.stream import EventStream
from forerun.tokenizer.stream import CharacterStream
from forerun.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Token:
    """A token and its log-probability, if the request wants it."""

    id: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token whose text, characters [start, end) of the answer, may still be held back."""

    token: _Token
    start: int
    end: int


class Responder:
    """The sink of one request: written in the device thread, read through its stream."""

    def __init__(
        self,
        stream: EventStream,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        *,
        channels: Channels | None = None,
        tag_ids: frozenset[int] = frozenset(),
        load_s: float = 0.0,
        context: Sequence[int] | None = None,
    ) -> None:
        """Made when the request arrives: the first token's time counts from here.

        channels  None: all of the answer is text
        tag_ids   control tokens that have text in an answer
        context   the prompt, if its ids are wanted with those of the answer
        """
        self._stream = stream
        self._tokenizer = tokenizer
        self._load_s = load_s
        self._context = None if context is None else list(context)
        self._bytes = tokenizer.decode_stream()
        self._characters: CharacterStream[_Token] = CharacterStream()
        self._stops = StopMatcher(stops)
        self._channels = channels
        self._tag_ids = tag_ids
        self._waiting: deque[_Waiting] = deque()
        self._read = 0  # characters so far, held back or not
        self._decided = 0  # of these, characters that are given out, or found to say nothing
        self._stopped = False
        self._prompt_tokens = 0
        self._arrived = time.monotonic()
        self._first_token_s = 0.0
        self._thinking_tokens = 0

    @property
    def waited_s(self) -> float:
        return self._stream.waited_s

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self.prefilled(cached_tokens)

    def prefilled(self, tokens: int) -> None:
        self._stream.put(Progress(processed=tokens, total=self._prompt_tokens))

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        if not self._first_token_s:
            self._first_token_s = time.monotonic() - self._arrived
        text = ""
        for place, token in enumerate(tokens):
            text += self._push(_Token(token, logprobs[place] if logprobs else None))
            if self._stopped:
                self._give(self._separated(text, last=True), last=True)
                return place + 1
        if text:  # DEC-9: what completes no character waits for the text that does
            self._give(self._separated(text))
        return None

    def finish(self, reason: DoneReason, figures: Counted) -> None:
        try:
            self._emit_rest()
        except CancelledError as error:
            self.fail(error)
            return
        self._stream.put(
            Done(
                reason=reason,
                context_ids=self._context or [],
                figures=Figures(
                    prompt_tokens=figures.prompt_tokens,
                    cached_tokens=figures.cached_tokens,
                    generated_tokens=figures.generated_tokens,
                    prompt_seconds=figures.prompt_seconds,
                    generation_seconds=figures.generation_seconds,
                    drafted_tokens=figures.drafted_tokens,
                    accepted_tokens=figures.accepted_tokens,
                    drafting=None if figures.drafting is None else _drafting(figures.drafting),
                    thinking_tokens=self._thinking_tokens,
                    load_seconds=self._load_s,
                    first_token_seconds=self._first_token_s,
                ),
            )
        )

    def fail(self, error: ForerunError) -> None:
        self._stream.put(Failed(status=error.status, message=one_line(error)))

    def _push(self, token: _Token) -> str:
        """The text that is certain once `token` is there."""
        text, whole = self._characters.push(self._bytes_of(token.id), token)
        start, self._read = self._read, self._read + len(text)
        self._waiting.extend(_Waiting(entry, start, self._read) for entry in whole)
        certain, self._stopped = self._stops.push(text)
        return certain

    def _bytes_of(self, token: int) -> bytes:
        if token in self._tag_ids:
            return self._tokenizer.token_bytes(token, control=True)
        return self._bytes.push(token)

    def _separated(self, text: str, *, last: bool = False) -> list[Piece]:
        if self._channels is None:
            return [Piece(len(text), text=text)]
        pieces = self._channels.push(text)
        return pieces + self._channels.finish() if last else pieces

    def _give(self, pieces: Sequence[Piece], *, last: bool = False) -> None:
        """Emit what the pieces say, each chunk with the tokens of its text; `last`, with the rest.

        A round that says nothing emits nothing: its tokens wait.
        """
        made = chunks(pieces)
        for place, (raw, chunk) in enumerate(made):
            self._decided += raw
            ending = last and place == len(made) - 1
            if not ending and chunk == Chunk():
                continue
            tokens = self._rest() if ending else self._leaving()
            if tokens or chunk != Chunk():
                self._emit(chunk, tokens)

    def _leaving(self) -> list[_Token]:
        """Tokens whose text is decided."""
        leaving = []
        while self._waiting and self._waiting[0].end <= self._decided:
            leaving.append(self._waiting.popleft().token)
        return leaving

    def _rest(self) -> list[_Token]:
        """At a stop string the tokens that begin before it, else all that are left."""
        leaving = self._leaving()
        if not self._stopped:
            return leaving + [each.token for each in self._waiting] + self._characters.finish()
        return leaving + [each.token for each in self._waiting if each.start < self._decided]

    def _emit_rest(self) -> None:
        """What was held back when no stop string came of it; a cut character is dropped (UTF-3)."""
        if not self._stopped:
            self._give(self._separated(self._stops.finish(), last=True), last=True)

    def _emit(self, chunk: Chunk, tokens: Sequence[_Token]) -> None:
        self._thinking_tokens += len(tokens) if chunk.thinking else 0
        chunk.tokens = [token.id for token in tokens]
        if self._context is not None:
            self._context += chunk.tokens
        chunk.logprobs = [
            _entry(token.logprob, self._tokenizer) for token in tokens if token.logprob
        ]
        self._stream.put(chunk)


def _drafting(counted: CountedDrafting) -> Drafting:
    return Drafting(
        drafter=counted.drafter,
        rounds=counted.rounds,
        drafted=counted.drafted,
        accepted=counted.accepted,
        positions=[
            DraftPosition(accepted=accepted, observed=observed)
            for accepted, observed in counted.by_position
        ],
        depths=[DraftDepth(mean=mean, largest=largest) for mean, largest in counted.depths],
    )


def _entry(logprob: TokenLogprob, tokenizer: Tokenizer) -> LogprobEntry:
    return LogprobEntry(
        token=tokenizer.token_text(logprob.token),
        logprob=logprob.logprob,
        bytes=list(tokenizer.token_bytes(logprob.token, control=True)),
        top_logprobs=[
            TopLogprob(
                token=tokenizer.token_text(token),
                logprob=value,
                bytes=list(tokenizer.token_bytes(token, control=True)),
            )
            for token, value in logprob.top
        ],
    )
