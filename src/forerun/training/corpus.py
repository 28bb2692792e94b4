"""What the target wrote, on disk and in memory, and the order in which a run reads it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.paths import replacing

_WIDTH = 32  # widths of batches are multiples of it, so that few shapes occur
_WINDOW = 4096  # sequences that are sorted by length together
HELD_OUT = 64  # one prompt of so many is never trained on
SELF_WRITTEN = HELD_OUT << 20  # the first number of prompts that the target wrote itself


@dataclass(frozen=True, slots=True)
class Written:
    """One sequence: prompt and answers, in turns."""

    item: int  # twice the prompt's number, and one more where it was sampled
    tokens: Tensor  # [n]
    own: Tensor  # [n] bool, what the target wrote itself


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sequences one after the other, on the CPU."""

    tokens: Tensor  # [all] int32
    own: Tensor  # [all] bool
    lengths: Tensor  # [sequences] int64
    items: Tensor  # [sequences] int64

    @property
    def starts(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    def select(self, chosen: Tensor) -> "Corpus":
        """The sequences that the mask [sequences] names, in order."""
        kept = chosen.repeat_interleave(self.lengths)
        return Corpus(self.tokens[kept], self.own[kept], self.lengths[chosen], self.items[chosen])

    def split(self) -> tuple["Corpus", "Corpus"]:
        """What is trained on, and the greedy sequences of prompts that are held out."""
        held = self.items // 2 % HELD_OUT == 0
        return self.select(~held), self.select(held & (self.items % 2 == 0))

    def by_author(self) -> tuple["Corpus", "Corpus"]:
        """The sequences of prompts that people wrote, and of those that the target wrote."""
        self_written = self.items // 2 >= SELF_WRITTEN
        return self.select(~self_written), self.select(self_written)


def collect(written: Sequence[Written]) -> Corpus:
    """Sequences as a corpus."""
    return Corpus(
        tokens=torch.cat([one.tokens.to(torch.int32) for one in written]),
        own=torch.cat([one.own for one in written]),
        lengths=torch.tensor([len(one.tokens) for one in written]),
        items=torch.tensor([one.item for one in written]),
    )


def write_shard(folder: Path, corpus: Corpus) -> None:
    """Add a file of sequences to a folder of them."""
    largest = int(corpus.tokens.max())
    small = torch.uint16 if largest < 1 << 16 else torch.int32
    parts = {
        "tokens": corpus.tokens.to(small),
        "own": corpus.own,
        "lengths": corpus.lengths,
        "items": corpus.items,
    }
    with replacing(folder / f"{len(shards(folder)):05}.safetensors") as file:
        file.write(save(parts))


def shards(folder: Path) -> list[Path]:
    """The files of a corpus, in the order they were written."""
    return sorted(folder.glob("*.safetensors"))


def read_corpus(folder: Path) -> Corpus:
    """All sequences of a folder; none is an error."""
    parts = [load_file(path) for path in shards(folder)]
    if not parts:
        raise LoadError(f"no text has been written in {folder}; let the target write some first")
    return Corpus(
        tokens=torch.cat([part["tokens"].to(torch.int32) for part in parts]),
        own=torch.cat([part["own"] for part in parts]),
        lengths=torch.cat([part["lengths"] for part in parts]),
        items=torch.cat([part["items"] for part in parts]),
    )


def counted(corpus: Corpus, vocabulary: int) -> Tensor:
    """[vocabulary] int64: how often the target wrote each token."""
    return torch.bincount(corpus.tokens[corpus.own].long(), minlength=vocabulary)


def frequent(counts: Tensor, columns: int) -> Tensor:
    """[columns] ascending ids of the most frequent tokens; of equals the smaller ids."""
    order = counts.sort(descending=True, stable=True).indices
    return order[: min(columns, len(counts))].sort().values


def coverage(counts: Tensor, sizes: Sequence[int]) -> dict[int, float]:
    """What share of the text the most frequent tokens make up, by how many they are."""
    shares = counts.sort(descending=True).values.cumsum(0).double() / max(int(counts.sum()), 1)
    return {size: float(shares[min(size, len(shares)) - 1]) for size in sizes}


@dataclass(frozen=True, slots=True)
class Chosen:
    """The sequences of one batch, and the columns it has."""

    sequences: Tensor  # [B] int64
    width: int


def epoch(lengths: Tensor, batch_tokens: int, seed: int) -> list[Chosen]:
    """Every sequence once, in batches of like lengths: the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=generator)
    batches = [
        batch
        for window in torch.split(order, _WINDOW)
        for batch in _batches(window, lengths, batch_tokens)
    ]
    shuffled = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[place] for place in shuffled]


def _batches(window: Tensor, lengths: Tensor, batch_tokens: int) -> Iterator[Chosen]:
    sequences = window[lengths[window].argsort(descending=True, stable=True)]
    while len(sequences):
        width = -(-int(lengths[sequences[0]]) // _WIDTH) * _WIDTH
        rows = max(batch_tokens // width, 1)
        yield Chosen(sequences[:rows], width)
        sequences = sequences[rows:]
