"""tokenizer.json and its companions, rebuilt from the metadata of a GGUF file (GUF-8).

The ids are those of the original repository's tokenizer.json. What cannot be rebuilt exactly is
refused by name.
"""

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tokenizers import Tokenizer

from forerun.base.errors import ImportFailedError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.importer.gguf_reader.metadata import Metadata
from forerun.importer.gguf_reader.pretokenizers import ADD_BOS, PRE_TOKENIZERS

Document: TypeAlias = JsonObject

SPACE = "▁"  # how sentencepiece writes a space
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


class TokenType(IntEnum):
    """What tokenizer.ggml.token_type says of a token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    tokens: list[str]
    types: list[int]

    def of_type(self, *types: TokenType) -> list[int]:
        """Ids in order."""
        return [i for i, kind in enumerate(self.types) if kind in types]

    @property
    def used(self) -> list[int]:
        """All but padding rows."""
        return [i for i, kind in enumerate(self.types) if kind != TokenType.UNUSED]

    @property
    def added(self) -> list[int]:
        return self.of_type(TokenType.CONTROL, TokenType.USER_DEFINED)


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    key = "tokenizer.ggml.token_type"
    types = metadata.wholes(key) if metadata.has(key) else [int(TokenType.NORMAL)] * len(tokens)
    if len(types) != len(tokens):
        raise ImportFailedError(
            f"{metadata.file} has {len(tokens)} tokens and {len(types)} token types"
        )
    vocabulary = Vocabulary(tokens, types)
    first: dict[str, int] = {}
    for i in vocabulary.used:
        if first.setdefault(tokens[i], i) != i:
            raise ImportFailedError(
                f"{metadata.file}: tokens {first[tokens[i]]} and {i} are both {tokens[i]!r}"
            )
    return vocabulary


def build_tokenizer(metadata: Metadata) -> bytes:
    """tokenizer.json, loaded once to prove that every token has the id that the file gives it."""
    vocabulary = read_vocabulary(metadata)
    kind = metadata.text("tokenizer.ggml.model")
    if kind == "gpt2":
        document = _byte_level(metadata, vocabulary)
    elif kind == "llama":
        vocabulary = _with_written_spaces(vocabulary)
        document = _sentencepiece(metadata, vocabulary)
    else:
        raise ImportFailedError(
            f"{metadata.file}: tokenizer.ggml.model is {kind!r}; gpt2 and llama can be converted"
        )
    document["added_tokens"] = [_added_token(vocabulary, i) for i in vocabulary.added]
    document["post_processor"] = _ends(metadata, vocabulary)
    data = json.dumps(document, ensure_ascii=False).encode()
    _check_ids(metadata, vocabulary, data)
    return data


def adds_bos(metadata: Metadata) -> bool:
    """As stated; where it is not, as the kind of tokenizer always does."""
    pre = metadata.text_or("tokenizer.ggml.pre", None)
    usual = metadata.text_or("tokenizer.ggml.model", None) == "llama" or pre in ADD_BOS
    return metadata.flag_or("tokenizer.ggml.add_bos_token", usual)


def adds_eos(metadata: Metadata) -> bool:
    return metadata.flag_or("tokenizer.ggml.add_eos_token", False)


def special_id(metadata: Metadata, role: str) -> int | None:
    """The id of bos, eos, eot, unknown or padding; None if there is none."""
    key = f"tokenizer.ggml.{role}_token_id"
    return metadata.whole(key) if metadata.has(key) else None


def _byte_level(metadata: Metadata, vocabulary: Vocabulary) -> Document:
    pre = metadata.text("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise ImportFailedError(
            f"{metadata.file}: tokenizer.ggml.pre is {pre!r}, whose pattern is not known; import "
            f"the model from its safetensors, or one of {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    chosen = PRE_TOKENIZERS[pre]
    key = "tokenizer.ggml.merges"  # a vocabulary of bytes alone has none
    listed = metadata.texts(key) if metadata.has(key) else []
    words = _merged_vocabulary(vocabulary)
    merges = [_pair(metadata, merge, words) for merge in listed]
    model = _bpe(words, merges) | {"ignore_merges": chosen.ignore_merges}
    return {
        "version": "1.0",
        "normalizer": {"type": "NFC"} if chosen.composes else None,
        "pre_tokenizer": chosen.document(),
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": model,
    }


def _pair(metadata: Metadata, merge: str, words: Document) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not (left in words and right in words and left + right in words):
        raise ImportFailedError(
            f"{metadata.file}: merge {merge!r} is not a pair of tokens that make a token"
        )
    return left, right


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary) -> Document:
    """Pieces merged by score, with bytes for what has no piece."""
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        raise ImportFailedError(
            f"{metadata.file} has {len(vocabulary.tokens)} tokens and {len(scores)} scores"
        )
    prefix = metadata.flag_or("tokenizer.ggml.add_space_prefix", True)
    unknown = vocabulary.of_type(TokenType.UNKNOWN)
    words: Document = {vocabulary.tokens[i]: i for i in vocabulary.used}
    model = _bpe(words, merges_by_score(vocabulary, scores)) | {
        "unk_token": vocabulary.tokens[unknown[0]] if unknown else None,
        "fuse_unk": True,
        "byte_fallback": all(byte in words for byte in BYTES),
        "ignore_merges": False,
    }
    replace: JsonValue = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend: JsonValue = {"type": "Prepend", "prepend": SPACE}
    decoders: list[JsonValue] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]}
        if prefix
        else replace,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def merges_by_score(vocabulary: Vocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two, best piece first.

    Of one piece's ways the one with the longer left half comes first: so do the published
    tokenizer.json files of sentencepiece models.
    """
    mergeable = {
        vocabulary.tokens[i]: scores[i]
        for i in vocabulary.of_type(TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    ranked = [
        (-score, cut - len(piece), piece)
        for piece, score in mergeable.items()
        for cut in range(1, len(piece))
        if piece[:cut] in mergeable and piece[cut:] in mergeable
    ]
    ranked.sort(key=lambda way: (way[0], -len(way[2]) - way[1]))
    return [(piece[:cut], piece[cut:]) for _, cut, piece in ranked]


def _with_written_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """Runs of spaces as their pieces: GGUF writes those that users defined as plain spaces."""
    tokens = [
        token.replace(" ", SPACE) if kind == TokenType.USER_DEFINED else token
        for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
    ]
    return Vocabulary(tokens, vocabulary.types)


def _merged_vocabulary(vocabulary: Vocabulary) -> Document:
    """Ids by token. Added tokens at the very end are left to `added_tokens`.

    Those then follow the model's own without a gap, and a token that no text may spell stays out
    of reach of the merges.
    """
    used = vocabulary.used
    added = set(vocabulary.added)
    while used and used[-1] in added and used[-1] == used[0] + len(used) - 1:
        used.pop()
    return {vocabulary.tokens[i]: i for i in used}


def _bpe(words: Document, merges: list[tuple[str, str]]) -> Document:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": words,
        "merges": [[left, right] for left, right in merges],
    }


def _added_token(vocabulary: Vocabulary, index: int) -> Document:
    return {
        "id": index,
        "content": vocabulary.tokens[index],
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": vocabulary.types[index] == TokenType.CONTROL,
    }


def _ends(metadata: Metadata, vocabulary: Vocabulary) -> JsonValue:
    """What the tokenizers library puts around a text when it is asked for special tokens."""
    bos = special_id(metadata, "bos") if adds_bos(metadata) else None
    eos = special_id(metadata, "eos") if adds_eos(metadata) else None
    if bos is None and eos is None:
        return None

    def around(sequence: str, kind: int) -> list[JsonValue]:
        text: JsonValue = {"Sequence": {"id": sequence, "type_id": kind}}
        ends: list[JsonValue] = [
            None if i is None else {"SpecialToken": {"id": vocabulary.tokens[i], "type_id": kind}}
            for i in (bos, eos)
        ]
        return [part for part in (ends[0], text, ends[1]) if part is not None]

    names: Document = {
        vocabulary.tokens[i]: {
            "id": vocabulary.tokens[i],
            "ids": [i],
            "tokens": [vocabulary.tokens[i]],
        }
        for i in (bos, eos)
        if i is not None
    }
    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": [*around("A", 0), *around("B", 1)],
        "special_tokens": names,
    }


def _check_ids(metadata: Metadata, vocabulary: Vocabulary, data: bytes) -> None:
    tokenizer = Tokenizer.from_str(data.decode())
    for index in vocabulary.used:
        found = tokenizer.token_to_id(vocabulary.tokens[index])
        if found != index:
            raise ImportFailedError(
                f"{metadata.file}: token {index} {vocabulary.tokens[index]!r} would get id {found}"
            )
