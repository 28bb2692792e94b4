"""From tokens to events: text, stop strings and log-probabilities (spec 05 UTF, STP; 04 LGP-4)."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.base.errors import CancelledError, ForerunError, one_line
from forerun.chat.stops import StopMatcher
from forerun.contract.decoder import TokenLogprob
from forerun.contract.sink import DoneReason
from forerun.contract.sink import Figures as Counted
from forerun.protocol.events import (
    Chunk,
    Done,
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
        load_s: float = 0.0,
    ) -> None:
        """Made when the request arrives: the first token's time counts from here."""
        self._stream = stream
        self._tokenizer = tokenizer
        self._load_s = load_s
        self._bytes = tokenizer.decode_stream()
        self._characters: CharacterStream[_Token] = CharacterStream()
        self._stops = StopMatcher(stops)
        self._waiting: deque[_Waiting] = deque()
        self._read = 0  # characters so far, held back or not
        self._certain = 0  # of these, characters that are given out
        self._stopped = False
        self._prompt_tokens = 0
        self._arrived = time.monotonic()
        self._first_token_s = 0.0

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
                self._emit(text, self._leaving())
                return place + 1
        if text:  # DEC-9: what completes no character waits for the text that does
            self._emit(text, self._leaving())
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
                figures=Figures(
                    prompt_tokens=figures.prompt_tokens,
                    cached_tokens=figures.cached_tokens,
                    generated_tokens=figures.generated_tokens,
                    prompt_seconds=figures.prompt_seconds,
                    generation_seconds=figures.generation_seconds,
                    drafted_tokens=figures.drafted_tokens,
                    accepted_tokens=figures.accepted_tokens,
                    load_seconds=self._load_s,
                    first_token_seconds=self._first_token_s,
                ),
            )
        )

    def fail(self, error: ForerunError) -> None:
        self._stream.put(Failed(status=error.status, message=one_line(error)))

    def _push(self, token: _Token) -> str:
        """The text that is certain once `token` is there."""
        text, whole = self._characters.push(self._bytes.push(token.id), token)
        start, self._read = self._read, self._read + len(text)
        self._waiting.extend(_Waiting(entry, start, self._read) for entry in whole)
        certain, self._stopped = self._stops.push(text)
        self._certain += len(certain)
        return certain

    def _leaving(self) -> list[_Token]:
        """Tokens whose text is certain; at a stop string, those that begin before it."""
        leaving = []
        while self._waiting:
            first = self._waiting[0]
            if first.end > self._certain and not (self._stopped and first.start < self._certain):
                break
            leaving.append(self._waiting.popleft().token)
        return leaving

    def _emit_rest(self) -> None:
        """What was held back when no stop string came of it; a cut character is dropped (UTF-3)."""
        if self._stopped:
            return
        text = self._stops.finish()
        tokens = [waiting.token for waiting in self._waiting] + self._characters.finish()
        if text or tokens:
            self._emit(text, tokens)

    def _emit(self, text: str, tokens: Sequence[_Token]) -> None:
        entries = [_entry(token.logprob, self._tokenizer) for token in tokens if token.logprob]
        self._stream.put(Chunk(text=text, tokens=[token.id for token in tokens], logprobs=entries))


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
