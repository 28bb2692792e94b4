"""Prompts as tokens in a file, so that the machine that trains needs no tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from forerun.base.paths import replacing
from forerun.training.corpus import SELF_WRITTEN


@dataclass(frozen=True, slots=True)
class EncodedPrompts:
    """Prompt `i` is part 2 * i, what its user says after the answer part 2 * i + 1 (maybe empty).

    The second part begins with the end of the answer. The first `early` prompts are answered before
    all others. Those that the target wrote itself have numbers of their own, from SELF_WRITTEN on.
    """

    tokens: Tensor  # [all] int32
    ends: Tensor  # [2 * prompts] int64, where each part ends
    eos: frozenset[int]
    early: int = 0
    self_written: "EncodedPrompts | None" = None

    def __len__(self) -> int:
        return len(self.ends) // 2

    @property
    def self_numbers(self) -> range:
        """Of those that the target wrote."""
        count = 0 if self.self_written is None else len(self.self_written)
        return range(SELF_WRITTEN, SELF_WRITTEN + count)

    def prompt(self, number: int) -> Tensor:
        if self.self_written is not None and number >= SELF_WRITTEN:
            return self.self_written.prompt(number - SELF_WRITTEN)
        return self._part(2 * number)

    def follow_up(self, number: int) -> Tensor:
        if self.self_written is not None and number >= SELF_WRITTEN:
            return self.self_written.follow_up(number - SELF_WRITTEN)
        return self._part(2 * number + 1)

    def _part(self, number: int) -> Tensor:
        first = int(self.ends[number - 1]) if number else 0
        return self.tokens[first : int(self.ends[number])]


def join(
    parts: Sequence[tuple[Sequence[int], Sequence[int]]], eos: frozenset[int], *, early: int = 0
) -> EncodedPrompts:
    """Prompts and follow-ups as one value."""
    flat = [part for pair in parts for part in pair]
    return EncodedPrompts(
        tokens=torch.tensor([token for part in flat for token in part], dtype=torch.int32),
        ends=torch.tensor([len(part) for part in flat], dtype=torch.int64).cumsum(0),
        eos=eos,
        early=early,
    )


def write_prompts(path: Path, prompts: EncodedPrompts) -> None:
    largest = max(prompts.tokens.tolist(), default=0)
    parts = {
        "tokens": prompts.tokens.to(torch.uint16) if largest < 1 << 16 else prompts.tokens,
        "ends": prompts.ends,
        "eos": torch.tensor(sorted(prompts.eos)),
        "early": torch.tensor(prompts.early),
    }
    with replacing(path) as file:
        file.write(save(parts))


def read_prompts(path: Path) -> EncodedPrompts:
    parts = load_file(path)
    eos = frozenset(int(token) for token in parts["eos"].tolist())
    early = int(parts["early"]) if "early" in parts else 0  # older files do not say
    return EncodedPrompts(parts["tokens"].to(torch.int32), parts["ends"], eos, early)
