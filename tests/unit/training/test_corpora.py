"""What the target wrote: on disk, counted, and in the order of an epoch."""

from pathlib import Path

import pytest
import torch

from forerun.base.errors import LoadError
from forerun.training.corpus import (
    Corpus,
    Written,
    collect,
    counted,
    coverage,
    epoch,
    frequent,
    read_corpus,
    shards,
    write_shard,
)


def _corpus(*lengths: int, largest: int = 9) -> Corpus:
    written = [
        Written(item, torch.arange(length) % (largest + 1), torch.arange(length) > 0)
        for item, length in enumerate(lengths)
    ]
    return collect(written)


@pytest.mark.parametrize("largest", [9, 70_000])
def test_shards_are_read_back_in_order(tmp_path: Path, largest: int) -> None:
    tokens = torch.tensor([1, largest, 3])
    own = torch.tensor([False, True, True])
    for item in range(3):
        write_shard(tmp_path, collect([Written(item, tokens, own)]))
    found = read_corpus(tmp_path)
    assert len(shards(tmp_path)) == 3
    assert found.items.tolist() == [0, 1, 2]
    assert found.tokens.tolist() == [1, largest, 3] * 3
    assert found.own.tolist() == own.tolist() * 3
    assert found.starts.tolist() == [0, 3, 6]


def test_a_folder_without_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no text has been written"):
        read_corpus(tmp_path)


def test_only_what_the_target_wrote_is_counted() -> None:
    corpus = _corpus(4, 3)  # 0 1 2 3 and 0 1 2, of which the first are the prompt's
    assert counted(corpus, 5).tolist() == [0, 2, 2, 1, 0]


def test_the_vocabulary_is_the_most_frequent_tokens_in_order() -> None:
    counts = torch.tensor([5, 0, 9, 5, 1])
    assert frequent(counts, 3).tolist() == [0, 2, 3]
    assert frequent(counts, 2).tolist() == [0, 2]  # of equals the smaller id
    assert frequent(counts, 100).tolist() == [0, 1, 2, 3, 4]
    assert coverage(counts, [1, 3, 100]) == {1: 9 / 20, 3: 19 / 20, 100: 1.0}


def test_an_epoch_reads_every_sequence_once_in_batches_that_fit() -> None:
    lengths = torch.tensor([5, 64, 33, 32, 90, 1, 64, 7] * 20)
    batches = epoch(lengths, 256, seed=1)
    read = torch.cat([batch.sequences for batch in batches])
    assert sorted(read.tolist()) == list(range(160))
    for batch in batches:
        assert batch.width % 32 == 0
        assert int(lengths[batch.sequences].max()) <= batch.width
        assert len(batch.sequences) * batch.width <= 256


def test_the_order_is_the_seeds() -> None:
    lengths = torch.tensor([5, 64, 33, 32, 90, 1, 64, 7] * 20)

    def order(seed: int) -> list[int]:
        batches = epoch(lengths, 256, seed)
        return torch.cat([batch.sequences for batch in batches]).tolist()

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_a_sequence_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    (batch,) = epoch(torch.tensor([300]), 256, 0)
    assert batch.width == 320
    assert batch.sequences.tolist() == [0]
