"""Which tokens a grammar allows, as it arrives: packed words, 32 tokens each."""

import torch
from torch import Tensor

WORD_BITS = 32


def mask_words(vocab: int) -> int:
    """Words that a row of `vocab` tokens takes."""
    return -(-vocab // WORD_BITS)


def unpack_mask(words: Tensor, vocab: int) -> Tensor:
    """[rows, mask_words(vocab)] int32 to [rows, vocab] bool, True = allowed.

    Bit i of word j is token 32 * j + i; bits past the vocabulary are ignored.
    """
    assert words.dtype == torch.int32, f"mask words are {words.dtype}, not int32"
    assert words.shape[-1] == mask_words(vocab), f"{words.shape[-1]} mask words for {vocab} tokens"
    bits = torch.arange(WORD_BITS, dtype=torch.int32, device=words.device)
    spread = (words[:, :, None] >> bits).bitwise_and_(1)
    return spread.flatten(1)[:, :vocab].to(torch.bool)
