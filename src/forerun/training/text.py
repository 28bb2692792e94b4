"""Prompts through the target's own chat template, as tokens."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from forerun.base.errors import RequestError
from forerun.chat.render import ChatRenderer, ChatRequest
from forerun.chat.sources import ChatTemplates
from forerun.store.stored import StoredModel
from forerun.tokenizer.tokenizer import Tokenizer
from forerun.training.encoded import EncodedPrompts, join
from forerun.training.prompts import COUNT, Prompt, packaged

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)
_NOW = datetime(2026, 1, 1)  # what templates that tell the day say: always the same


def encode_packaged(stored: StoredModel, count: int = COUNT) -> EncodedPrompts:
    """The packaged prompts for a model of the store."""
    return encode(stored, packaged(count))


def encode(stored: StoredModel, prompts: Iterable[Prompt], *, early: int = 0) -> EncodedPrompts:
    """Prompts as the model's users' chats would have them.

    early  so many of them, the first, are answered before the others
    """
    layers = {path: stored.json_layer(path) for path in _FILES}
    files = {path: stored.read(layer) for path, layer in layers.items() if layer is not None}
    config = stored.json("tokenizer_config.json") if "tokenizer_config.json" in files else {}
    templates = ChatTemplates.load(stored.template, config.get("chat_template"))
    tokenizer = Tokenizer.load(files, templates.literals)
    renderer = ChatRenderer(templates, tokenizer.special.names, tokenizer.control_tokens)

    def tokens(text: str, *, goes_on: bool) -> list[int]:
        turn = [{"role": "user", "content": text}]
        request = ChatRequest(turn, system=stored.system, goes_on=goes_on)
        spans = renderer.render(request, _NOW)
        return tokenizer.encode(spans) if goes_on else tokenizer.encode_prompt(spans)

    parts = [
        (
            tokens(prompt.text, goes_on=False),
            tokens(prompt.follow_up, goes_on=True) if prompt.follow_up else [],
        )
        for prompt in prompts
    ]
    return join(parts, tokenizer.eos_ids, early=early)


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
