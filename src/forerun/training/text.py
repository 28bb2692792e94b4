"""Prompts through the target's own chat template, as tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from forerun.base.errors import RequestError
from forerun.base.spans import Span
from forerun.chat.render import ChatRenderer, ChatRequest
from forerun.chat.sources import ChatTemplates
from forerun.store.stored import StoredModel
from forerun.tokenizer.tokenizer import Tokenizer
from forerun.training import topics
from forerun.training.encoded import EncodedPrompts, join
from forerun.training.prompts import COUNT, Prompt, packaged
from forerun.training.self_prompts import Openings

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)
_MARKER = "USERTURN"  # stands for what a user says
_SYSTEMS = (  # turns are written after these, too
    "You are a helpful assistant.",
    "You are an AI assistant for programming. The user asks for Python code.",
    "You are an AI assistant that helps with writing, roles, reasoning, mathematics and facts.",
)
_NOW = datetime(2026, 1, 1)  # what templates that tell the day say: always the same


def encode_packaged(stored: StoredModel, count: int = COUNT) -> EncodedPrompts:
    """The packaged prompts for a model of the store."""
    return encode(stored, packaged(count))


def encode(stored: StoredModel, prompts: Iterable[Prompt], *, early: int = 0) -> EncodedPrompts:
    """Prompts as the model's users' chats would have them.

    early  so many of them, the first, are answered before the others
    """
    chats = _Chats(stored)
    parts = [
        (
            chats.tokens(prompt.text),
            chats.tokens(prompt.follow_up, goes_on=True) if prompt.follow_up else [],
        )
        for prompt in prompts
    ]
    return join(parts, chats.tokenizer.eos_ids, early=early)


def openings(stored: StoredModel) -> Openings:
    """What stands around a user's turn in the model's chats."""
    chats = _Chats(stored)
    around = [chats.around(stored.system), *map(chats.around, _SYSTEMS)]
    starts = [start for start, _ in around]
    return Openings(
        starts=[list(start) for start in dict.fromkeys(map(tuple, starts))],
        closing=around[0][1],
        follow_ups=[chats.tokens(text, goes_on=True) for text in topics.FOLLOW_UPS],
        eos=sorted(chats.tokenizer.eos_ids),
    )


class _Chats:
    """The model's chat template and tokenizer."""

    def __init__(self, stored: StoredModel) -> None:
        layers = {path: stored.json_layer(path) for path in _FILES}
        files = {path: stored.read(layer) for path, layer in layers.items() if layer is not None}
        config = stored.json("tokenizer_config.json") if "tokenizer_config.json" in files else {}
        templates = ChatTemplates.load(stored.template, config.get("chat_template"))
        self.tokenizer = Tokenizer.load(files, templates.literals)
        self._system = stored.system
        special, control = self.tokenizer.special.names, self.tokenizer.control_tokens
        self._renderer = ChatRenderer(templates, special, control)

    def tokens(self, text: str, *, goes_on: bool = False) -> list[int]:
        """A user's turn up to where the answer begins; `goes_on`: after the answer before it."""
        spans = self._spans(text, self._system, goes_on=goes_on)
        return self.tokenizer.encode(spans) if goes_on else self.tokenizer.encode_prompt(spans)

    def around(self, system: str | None) -> tuple[list[int], list[int]]:
        """What comes before a user's first turn, and what comes after it."""
        spans = self._spans(_MARKER, system, goes_on=False)
        ((place, span),) = [
            (place, span) for place, span in enumerate(spans) if _MARKER in span.text
        ]
        before, after = (replace(span, text=text) for text in span.text.split(_MARKER))
        return (
            self.tokenizer.encode_prompt([*spans[:place], before]),
            self.tokenizer.encode([after, *spans[place + 1 :]]),
        )

    def _spans(self, text: str, system: str | None, *, goes_on: bool) -> list[Span]:
        turn = [{"role": "user", "content": text}]
        return self._renderer.render(ChatRequest(turn, system=system, goes_on=goes_on), _NOW)


def read_texts(paths: Sequence[Path]) -> list[Prompt]:
    """The prompts in text files, which blank lines keep apart. RequestError if one has none."""
    return [Prompt(text) for path in paths for text in _parts(path)]


def _parts(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as reason:
        raise RequestError(f"cannot read {path}: {reason.strerror}") from None
    except UnicodeDecodeError:
        raise RequestError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    found = [part.strip() for part in text.split("\n\n") if part.strip()]
    if not found:
        raise RequestError(f"{path} holds no prompts; write them with blank lines between")
    return found
