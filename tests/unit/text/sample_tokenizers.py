"""Small tokenizers of every kind that published models use, trained here on a few sentences."""

import json
from functools import cache

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

from forerun.base.spans import Span

CORPUS = [
    "The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore.",
    "It's a start, isn't it? They're ending what we've assumed: user, system, im_start, im_end.",
    "def main(x):\n    return x + 12345\n\n\nprint('hello  world')\n",
    "naïve café 日本語のテキスト и русский, 👩‍💻 emoji ½ ±",
    "a b c d e f g h i j k l m n o p q r s t u v w x y z think end of turn <| |> </ >",
]
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _trained(tokenizer, special=(), size=420):
    alphabet = pre_tokenizers.ByteLevel.alphabet() if special else []
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def _flagged(tokenizer):
    """Added tokens with every flag there is."""
    tokenizer.add_special_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("<norm>", normalized=True),
        ]
    )
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>"])
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("<plain>")])
    return tokenizer


def gpt2():
    """GPT-2: byte level with its own pattern, specials inside the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _flagged(_trained(tokenizer, SPECIAL))


def smollm():
    """SmolLM2: digits one by one, then byte level."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return _flagged(_trained(tokenizer, SPECIAL))


def qwen():
    """Qwen: NFC, a split pattern of its own, specials behind the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _trained(tokenizer, ["<filler>"])
    tokenizer.add_special_tokens(SPECIAL)
    return _flagged(tokenizer)


def llama3():
    """Llama 3: whole words of the vocabulary are taken without their merges."""
    definition = json.loads(qwen().to_str())
    definition["normalizer"] = None
    definition["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(definition))


def _byte_fallback(tokenizer, special):
    """Adds what SentencePiece vocabularies begin with: unknown, specials, 256 byte tokens."""
    definition = json.loads(_trained(tokenizer).to_str())
    model = definition["model"]
    front = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = [*front, *sorted(model["vocab"], key=model["vocab"].get)]
    model["vocab"] = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    model |= {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    rebuilt = Tokenizer.from_str(json.dumps(definition))
    rebuilt.add_special_tokens([AddedToken(t, normalized=False) for t in ["<unk>", *special]])
    return rebuilt


LLAMA2_DECODER = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


def llama2():
    """Llama 2 as first converted: a normaliser writes the space marks, also in front."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    return _flagged(_byte_fallback(tokenizer, ["<s>", "</s>"]))


def llama2_metaspace():
    """Llama 2 as converted today: the space mark stands in front of the first piece only."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    return _flagged(_byte_fallback(tokenizer, ["<s>", "</s>"]))


def gemma():
    """Gemma: space marks without a prefix, runs of newlines as plain added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER[:3])
    special = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = _byte_fallback(tokenizer, special)
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 5)])
    return _flagged(tokenizer)


def unigram():
    """T5-like: a unigram model whose vocabulary holds the specials, so that text can reach them."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -3.0), ("▁the", -4.0)]
    pieces += [(character, -6.0) for character in sorted(set("".join(CORPUS)) - {" "})]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return _flagged(tokenizer)


KINDS = {
    make.__name__: make
    for make in (gpt2, smollm, qwen, llama3, llama2, llama2_metaspace, gemma, unigram)
}
BYTE_LEVEL = ("gpt2", "smollm", "qwen", "llama3")


@cache
def library(kind: str) -> Tokenizer:
    """The `tokenizers` library's own tokenizer of a kind."""
    return KINDS[kind]()


def files(kind: str, **objects: object) -> dict[str, bytes]:
    """A model's tokenizer files; `objects` are further files, named without their `.json`."""
    named = {f"{name}.json": json.dumps(value).encode() for name, value in objects.items()}
    return {"tokenizer.json": library(kind).to_str().encode(), **named}


def ids_of(tokenizer, text):
    """The ids of a raw prompt, which is trusted as a whole, without a BOS token."""
    return tokenizer.encode([Span(text, trusted=True)])
