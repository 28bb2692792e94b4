"""How text is cut before merging, by the names that GGUF files give it in tokenizer.ggml.pre.

The patterns are those of the models' published tokenizer.json files.
"""

from dataclasses import dataclass

from forerun.base.json_types import JsonValue

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`pattern` None means GPT-2's own, which the library's ByteLevel holds."""

    pattern: str | None = None
    single_digits: bool = False
    ignore_merges: bool = False  # a word that is a token is that token
    composes: bool = False  # normalises to NFC first

    def document(self) -> JsonValue:
        """The pre_tokenizer of a tokenizer.json."""
        parts: list[JsonValue] = []
        if self.single_digits:
            parts.append({"type": "Digits", "individual_digits": True})
        if self.pattern is not None:
            parts.append(
                {
                    "type": "Split",
                    "pattern": {"Regex": self.pattern},
                    "behavior": "Isolated",
                    "invert": False,
                }
            )
        parts.append(
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": self.pattern is None,
            }
        )
        return {"type": "Sequence", "pretokenizers": parts}


_GPT2 = PreTokenizer()
_SMOLLM = PreTokenizer(single_digits=True)
_LLAMA3 = PreTokenizer("|".join((_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _REST)), ignore_merges=True)
_QWEN2 = PreTokenizer("|".join((_CONTRACTIONS, _WORDS, r"\p{N}", _REST)), composes=True)

PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
}
# Their repositories put BOS in front; files made from them may not say so.
ADD_BOS = frozenset({"llama-bpe"})
