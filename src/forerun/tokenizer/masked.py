"""A twin of a tokenizer that cannot see control tokens as they are spelled.

Each control token is renamed to a *sentinel*, a spelling nobody can guess, wherever tokenizer.json
names it: among the added tokens, in the model's vocabulary and as its unknown token. The twin keeps
every id and flag. Text that spells a control token is then plain text to it; where a sentinel
stands for one that is meant, the library matches it, and whatever it does at the borders of an
added token (stripping, prefix spaces, normalising) it does here too.
"""

import json
import secrets
import string
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer as Library

from forerun.base.json_types import JsonObject, JsonValue
from forerun.tokenizer.files import AddedToken, added_tokens

SENTINEL_LETTERS = 24  # 112 bits


def make_sentinels(contents: Sequence[str]) -> dict[str, str]:
    """An unguessable spelling for each content.

    It begins and ends as the content does, so that what looks at a neighbour's last character
    (single words, combining marks) sees no difference. Letters survive every normaliser.
    """
    return {content: content[0] + _letters() + content[-1] for content in contents}


def build_masked(library: Library, sentinels: Mapping[str, str]) -> Library:
    """The twin of `library`. It costs as much time and memory as loading the tokenizer again."""
    definition: JsonObject = json.loads(library.to_str())
    before = added_tokens(definition)
    definition["added_tokens"] = [
        _masked_entry(entry, sentinels) for entry in _list(definition["added_tokens"])
    ]
    model = definition["model"]
    assert isinstance(model, dict)
    definition["model"] = _masked_model(model, sentinels)
    twin = Library.from_str(json.dumps(definition))
    _assert_same_ids(before, twin, sentinels)
    return twin


def _letters() -> str:
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(SENTINEL_LETTERS))


def _masked_entry(entry: JsonValue, sentinels: Mapping[str, str]) -> JsonValue:
    assert isinstance(entry, dict)
    content = entry["content"]
    if not isinstance(content, str) or content not in sentinels:
        return entry
    return {**entry, "content": sentinels[content]}


def _masked_model(model: JsonObject, sentinels: Mapping[str, str]) -> JsonObject:
    masked = dict(model)
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        masked["vocab"] = {sentinels.get(text, text): i for text, i in vocabulary.items()}
    else:
        masked["vocab"] = [_masked_piece(piece, sentinels) for piece in _list(vocabulary)]
    if "merges" in model:
        prefix = model.get("continuing_subword_prefix") or ""
        assert isinstance(prefix, str)
        merges = _list(model["merges"])
        masked["merges"] = [m for m in merges if not _touches(m, sentinels, prefix)]
    unknown = model.get("unk_token")
    if isinstance(unknown, str):
        masked["unk_token"] = sentinels.get(unknown, unknown)
    return masked


def _masked_piece(piece: JsonValue, sentinels: Mapping[str, str]) -> JsonValue:
    """A unigram vocabulary is a list of [text, score]."""
    text, score = _list(piece)
    assert isinstance(text, str)
    return [sentinels.get(text, text), score]


def _touches(merge: JsonValue, sentinels: Mapping[str, str], prefix: str) -> bool:
    """Whether a merge makes a control token or builds on one."""
    pair = merge.split(" ") if isinstance(merge, str) else _list(merge)
    left, right = (str(half) for half in pair)
    whole = left + right.removeprefix(prefix)
    return left in sentinels or right in sentinels or whole in sentinels


def _list(value: JsonValue) -> list[JsonValue]:
    assert isinstance(value, list), f"tokenizer.json holds {type(value).__name__}, not a list"
    return value


def _assert_same_ids(
    tokens: Sequence[AddedToken], twin: Library, sentinels: Mapping[str, str]
) -> None:
    for token in tokens:
        twin_id = twin.token_to_id(sentinels.get(token.content, token.content))
        assert twin_id == token.id, f"{token.content!r}: id {token.id}, in the twin {twin_id}"
