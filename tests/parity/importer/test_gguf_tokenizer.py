"""A tokenizer that went through a GGUF file gives the ids of the original (GUF-8, TOK-1)."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from forerun.base.errors import ImportFailedError
from forerun.importer.gguf_reader.metadata import Metadata
from forerun.importer.gguf_reader.tokenizer import Vocabulary, build_tokenizer, merges_by_score
from unit.importer.gguf_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    tokenizer_metadata,
)

PROSE = (
    Path(__file__).read_text()
    + "It's 1234567 o'clock; cafe\u0301 DON'T say 'naïve'. 日本 ½ ٣٤\r\n\r\n  \t x"
)
NUMBERS = " 1234567 99 cafe\u0301"
LETTERS = st.text(st.sampled_from("aeb't 's'LL 0123\n\t\r.,!<>|é日本👩‍💻\u0301½٣ "), max_size=40)
CONTROLS = st.lists(st.sampled_from(["<|end|>", "<|start|>", "<tool>", " ", "a"]), max_size=4)


def pre_tokenizer_of(pre: str) -> pre_tokenizers.PreTokenizer:
    """As the models' published tokenizer.json files have it, by transformers where it knows."""
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    patterns = {
        "llama-bpe": TikTokenConverter().pattern,
        "qwen2": PRETOKENIZE_REGEX,
    }
    if pre in patterns:
        cut = pre_tokenizers.Split(Regex(patterns[pre]), behavior="isolated")
        return pre_tokenizers.Sequence([cut, bytes_only])
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    return gpt2


def trained(pre: str, folder: Path) -> Tokenizer:
    """A small tokenizer in the manner of `pre`, saved as a repository has it.

    It knows merges that its pattern forbids (of digits), and its last token lacks the merge that
    makes it, so that every part of the manner shows in the ids.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizer_of("gpt-2")
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|start|>"] if pre == "smollm" else [],
        show_progress=False,
    )
    tokenizer.train_from_iterator([PROSE] + 9 * [NUMBERS], trainer)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizer_of(pre)
    tokenizer.add_special_tokens(["<|end|>", "<|start|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    document = json.loads(tokenizer.to_str())
    document["model"]["merges"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return Tokenizer.from_str(json.dumps(document))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_byte_level_ids_are_the_original_ones(
    pre: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """GUF-8: for each known pattern, control and user-defined tokens included."""
    folder = tmp_path_factory.mktemp(pre)
    original = trained(pre, folder)
    rebuilt = rebuild(tokenizer_metadata(folder, pre))
    for token in range(original.get_vocab_size()):
        text = original.decode([token], skip_special_tokens=False)
        assert rebuilt.encode(text).tokens[-1:] == original.encode(text).tokens[-1:]

    @given(text=LETTERS, controls=CONTROLS)
    @example(text=PROSE, controls=[])
    @settings(max_examples=100)
    def agree(text: str, controls: list[str]) -> None:
        mixed = text.join(controls) if controls else text
        ids = original.encode(mixed, add_special_tokens=False).ids
        assert rebuilt.encode(mixed, add_special_tokens=False).ids == ids
        assert rebuilt.decode(ids) == original.decode(ids)

    agree()


def rebuild(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(Metadata("a.gguf", metadata)).decode())


SCORED = ["▁", "a", "b", "c", "ab", "▁a", "aa", "bc", "▁ab", "abc", "aaa", "cab", "é"]
RUNS = ["  ", "   ", "\n\n", "\n\n\n"]  # spaces as GGUF files write user-defined ones


def pieces_metadata(*, prefix: bool) -> dict[str, Any]:
    """A sentencepiece vocabulary as a GGUF file has it; better pieces come first."""
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    runs = [] if prefix else RUNS
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": special + octets + runs + SCORED,
        "tokenizer.ggml.scores": [0.0] * (3 + 256 + len(runs))
        + [-1.0 - rank for rank in range(len(SCORED))],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL]
        + [BYTE] * 256
        + [USER_DEFINED] * len(runs)
        + [NORMAL] * len(SCORED),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def merge_by_score(text: str, metadata: dict[str, Any]) -> list[int]:
    """Sentencepiece in its plainest form: merge the best neighbours, leftmost first."""
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    score = dict(zip(SCORED, range(0, -len(SCORED), -1), strict=True))
    symbols = list(text.replace(" ", "▁"))
    while True:
        pairs = [a + b for a, b in itertools.pairwise(symbols)]
        known = [(score[pair], -place) for place, pair in enumerate(pairs) if pair in score]
        if not known:
            break
        place = -max(known)[1]
        symbols[place : place + 2] = [pairs[place]]
    return [
        i
        for symbol in symbols
        for i in (
            [ids[symbol]] if symbol in score else [ids[f"<0x{b:02X}>"] for b in symbol.encode()]
        )
    ]


PREFIXED, UNPREFIXED = (rebuild(pieces_metadata(prefix=prefix)) for prefix in (True, False))


@given(text=st.text(st.sampled_from("abc é\t日"), min_size=1, max_size=16))
@settings(max_examples=300)
def test_pieces_are_merged_by_score(text: str) -> None:
    """GUF-8: best score first, a space in front, bytes for characters without a piece."""
    metadata = pieces_metadata(prefix=True)
    ids = PREFIXED.encode(text, add_special_tokens=False).ids
    assert ids == merge_by_score(" " + text, metadata)
    assert PREFIXED.decode(ids) == text


@given(text=st.text(st.sampled_from("ab é"), max_size=12), runs=st.lists(st.integers(0, 3)))
@settings(max_examples=300)
def test_user_defined_runs_are_single_tokens(text: str, runs: list[int]) -> None:
    """GUF-8: gemma's runs of newlines cut the text, runs of spaces are pieces; no prefix."""
    metadata = pieces_metadata(prefix=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    newlines = "\n\n\n"
    mixed = text + "".join(newlines + text for _ in runs)
    wanted: list[int] = []
    for index, segment in enumerate(mixed.split(newlines)):
        wanted += [tokens.index(newlines)] if index else []
        wanted += spaced_ids(segment, metadata)
    assert UNPREFIXED.encode(mixed, add_special_tokens=False).ids == wanted
    assert UNPREFIXED.decode(wanted) == mixed


def spaced_ids(segment: str, metadata: dict[str, Any]) -> list[int]:
    """Runs of spaces as their longest tokens from the left; what is between them merged."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return [
        i
        for part in re.split("(   |  )", segment)
        for i in ([tokens.index(part)] if part in RUNS else merge_by_score(part, metadata))
    ]


def test_of_one_piece_the_longer_left_half_comes_first() -> None:
    """GUF-8: the order of published tokenizer.json files; better pieces come before."""
    tokens, scores = ["a", "aa", "aaa", "b", "ab"], [0.0, -2.0, -3.0, 0.0, -1.0]
    vocabulary = Vocabulary(tokens, [NORMAL] * len(tokens))
    wanted = [("a", "b"), ("a", "a"), ("aa", "a"), ("a", "aa")]
    assert merges_by_score(vocabulary, scores) == wanted


def test_bos_and_eos_stand_around_a_text_where_the_file_says_so() -> None:
    """GUF-8, TOK-4, TOK-5: stated flags win; llama files without any add BOS."""
    metadata = pieces_metadata(prefix=True)
    assert rebuild(metadata).encode("a").ids[0] == 1
    metadata |= {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    ids = rebuild(metadata).encode("a").ids
    assert ids[0] != 1
    assert ids[-1] == 2
    pair = rebuild(metadata).encode("a", "b").ids
    assert pair.count(2) == 2


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.pre": "mystery"}, "'mystery'.*not known.*gpt-2, llama-bpe"),
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.merges": ["abc"]}, "'abc' is not a pair"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "not a pair"),
        ({"tokenizer.ggml.token_type": [NORMAL]}, "1 token types"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, "tokens 0 and 2 are both 'a'"),
    ],
)
def test_what_cannot_be_rebuilt_is_named(change: dict[str, Any], named: str) -> None:
    """GUF-8: an unknown pattern or kind is an error naming it, never a guess."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert rebuild(metadata).encode("ab").ids == [2]
    with pytest.raises(ImportFailedError, match=named):
        rebuild(metadata | change)


def test_added_tokens_at_the_end_stay_out_of_the_model() -> None:
    """GUF-8: so that `ignore_merges` cannot make one out of text; padding rows are no tokens."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": ["a", "<x>", "b", "<y>", "[PAD4]"],
        "tokenizer.ggml.token_type": [NORMAL, CONTROL, NORMAL, CONTROL, UNUSED],
    }
    document = json.loads(build_tokenizer(Metadata("a.gguf", metadata)))
    assert document["model"]["vocab"] == {"a": 0, "<x>": 1, "b": 2}
    assert [(t["id"], t["content"]) for t in document["added_tokens"]] == [(1, "<x>"), (3, "<y>")]
