"""Reads a model's tokenizer files: plain JSON in, checked values out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.base.json_types import JsonObject, JsonValue

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
GENERATION_CONFIG = "generation_config.json"
CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token matched in the text before the model's own vocabulary sees it."""

    id: int
    content: str
    special: bool


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of one model, parsed; one that is absent is an empty object.

    `definition` is what the library is to read: tokenizer.json with the added tokens that only
    tokenizer_config knows.
    """

    definition: bytes
    tokenizer: JsonObject
    tokenizer_config: JsonObject
    special_tokens_map: JsonObject
    generation_config: JsonObject
    config: JsonObject


def read_files(files: Mapping[str, bytes]) -> TokenizerFiles:
    """Parse the files by their published names. Raises LoadError naming the file."""
    if TOKENIZER not in files:
        raise LoadError(f"the model has no {TOKENIZER}; import it from a source that ships one")
    stored = _read(files, TOKENIZER)
    config = _read(files, TOKENIZER_CONFIG)
    tokenizer = _complete(stored, decoder_entries(config))
    unchanged = tokenizer == stored
    return TokenizerFiles(
        definition=files[TOKENIZER] if unchanged else json.dumps(tokenizer).encode(),
        tokenizer=tokenizer,
        tokenizer_config=config,
        special_tokens_map=_read(files, SPECIAL_TOKENS_MAP),
        generation_config=_read(files, GENERATION_CONFIG),
        config=_read(files, CONFIG),
    )


def added_tokens(tokenizer: JsonObject) -> list[AddedToken]:
    """The added tokens that tokenizer.json lists. Raises LoadError naming a malformed one."""
    return [_added_token(entry) for entry in _listed(tokenizer)]


def decoder_entries(tokenizer_config: JsonObject) -> list[JsonObject]:
    """The entries of tokenizer_config's `added_tokens_decoder`, as tokenizer.json writes them."""
    decoder = tokenizer_config.get("added_tokens_decoder") or {}
    if not isinstance(decoder, dict):
        raise LoadError(f"{TOKENIZER_CONFIG}: added_tokens_decoder is not an object")
    entries: list[JsonObject] = []
    for key, entry in decoder.items():
        if not key.isdecimal() or not isinstance(entry, dict):
            raise LoadError(f"{TOKENIZER_CONFIG}: added_tokens_decoder[{key!r}] is malformed")
        entries.append({"id": int(key), **entry})
    return entries


def _read(files: Mapping[str, bytes], name: str) -> JsonObject:
    if name not in files:
        return {}
    try:
        value: JsonValue = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{name} is not JSON ({error}); import the model again") from error
    if not isinstance(value, dict):
        raise LoadError(f"{name} holds no JSON object; import the model again")
    return value


def _listed(tokenizer: JsonObject) -> list[JsonValue]:
    listed = tokenizer.get("added_tokens") or []
    if not isinstance(listed, list):
        raise LoadError(f"{TOKENIZER}: added_tokens is not a list")
    return listed


def _added_token(entry: JsonValue) -> AddedToken:
    if isinstance(entry, dict):
        token_id, content = entry.get("id"), entry.get("content")
        if isinstance(token_id, int) and isinstance(content, str) and content:
            return AddedToken(token_id, content, special=entry.get("special") is True)
    raise LoadError(f"{TOKENIZER}: added token {entry!r} lacks an id or content")


def _complete(tokenizer: JsonObject, entries: list[JsonObject]) -> JsonObject:
    """tokenizer.json with the added tokens that only tokenizer_config knows.

    Truncation and padding are dropped: a published file may carry a trainer's settings.
    """
    known = {token.content for token in added_tokens(tokenizer)}
    defaults = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    missing: list[JsonValue] = []
    for entry in sorted(entries, key=lambda entry: _added_token(entry).id):
        if entry["content"] not in known:
            complete: JsonObject = {**defaults, "normalized": not entry.get("special"), **entry}
            missing.append(complete)
    return {
        **tokenizer,
        "added_tokens": [*_listed(tokenizer), *missing],
        "truncation": None,
        "padding": None,
    }
