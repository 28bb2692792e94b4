"""Log-probabilities in the two forms that OpenAI's endpoints give them (spec 08 API-16)."""

import codecs

from forerun.api.bodies import WireStruct
from forerun.protocol.events import LogprobEntry, TopLogprob


class TokenLogprobs(WireStruct):
    """A token and its rivals, a list that clients expect even if it is empty."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(WireStruct):
    """Of every token of the answer, those of its thinking and its calls too."""

    content: list[TokenLogprobs]


class TextLogprobs(WireStruct):
    """A column each. `top_logprobs` is null where no rivals were asked for."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


def chat_logprobs(entries: list[LogprobEntry]) -> ChatLogprobs | None:
    """None where the request wants none, or a piece of text completes no token."""
    if not entries:
        return None
    return ChatLogprobs(
        content=[
            TokenLogprobs(
                token=entry.token,
                logprob=entry.logprob,
                bytes=entry.bytes,
                top_logprobs=entry.top_logprobs,
            )
            for entry in entries
        ]
    )


class TextOffsets:
    """Where each token begins in the answer's text, in characters, across the pieces of a stream.

    A token inside a character begins where that character does.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def columns(self, entries: list[LogprobEntry]) -> TextLogprobs | None:
        """The next tokens of the answer; None for none."""
        if not entries:
            return None
        tops = [
            {entry.token: entry.logprob, **{top.token: top.logprob for top in entry.top_logprobs}}
            for entry in entries
        ]
        return TextLogprobs(
            tokens=[entry.token for entry in entries],
            token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=tops if any(entry.top_logprobs for entry in entries) else None,
            text_offset=[self._next(bytes(entry.bytes)) for entry in entries],
        )

    def _next(self, token: bytes) -> int:
        start = self._length
        self._length += len(self._decoder.decode(token))
        return start
