"""Prompts that the target writes itself, and how they are mixed with the packaged ones."""

import dataclasses
from pathlib import Path

import pytest
import torch

from fixtures.head_training import numbered_prompts, tiny_target
from fixtures.tiny import TURN_END, TURN_START
from forerun.training.corpus import SELF_WRITTEN, Written, collect, read_corpus
from forerun.training.encoded import EncodedPrompts, read_prompts, write_prompts
from forerun.training.generation import Budget, write_corpus
from forerun.training.recipe import Writing, no_report
from forerun.training.self_prompts import (
    LONGEST,
    SHORTEST,
    Asking,
    Openings,
    read_openings,
    write_openings,
    write_self_prompts,
)
from forerun.training.target import Target

OPENINGS = Openings(
    starts=[[TURN_START, 117, 10], [TURN_START, 115]],
    closing=[TURN_END, 10, 97],
    follow_ups=[[TURN_END, 10, 90, 91]],
    eos=[TURN_END, TURN_END - 2],
)
COUNT = 40


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


def _asked(target: Target, folder: Path, *, rows: int = COUNT, seed: int = 1) -> EncodedPrompts:
    asking = Asking(COUNT, 60.0, folder, rows, seed)
    return write_self_prompts(target, OPENINGS, asking, no_report)


@pytest.fixture(scope="module")
def asked(target: Target, tmp_path_factory: pytest.TempPathFactory) -> EncodedPrompts:
    return _asked(target, tmp_path_factory.mktemp("asked"))


def test_turns_stand_where_the_template_has_them(asked: EncodedPrompts) -> None:
    start, closing = OPENINGS.starts[0], OPENINGS.closing
    assert 3 < len(asked) < COUNT
    texts = [asked.prompt(number).tolist() for number in range(len(asked))]
    for text in texts:
        assert text[: len(start)] == start
        assert text[-len(closing) :] == closing
        turn = text[len(start) : -len(closing)]
        assert SHORTEST <= len(turn) <= LONGEST
        assert not {TURN_START, TURN_END, TURN_END - 2} & set(turn)
    assert len({tuple(text) for text in texts}) == len(texts)


def test_some_of_them_have_a_second_turn(asked: EncodedPrompts) -> None:
    further = [asked.follow_up(number).tolist() for number in range(len(asked))]
    assert {len(part) for part in further} == {0, len(OPENINGS.follow_ups[0])}
    assert asked.eos == frozenset(OPENINGS.eos)


def test_they_are_the_seeds_whatever_rows_write_them(
    target: Target, asked: EncodedPrompts, tmp_path: Path
) -> None:
    again = _asked(target, tmp_path / "again", rows=17)
    assert torch.equal(again.tokens, asked.tokens)
    assert torch.equal(again.ends, asked.ends)
    other = _asked(target, tmp_path / "other", seed=2)
    assert not torch.equal(other.tokens, asked.tokens)


def test_a_target_that_ends_no_turn_writes_no_prompts(target: Target, tmp_path: Path) -> None:
    unheard = dataclasses.replace(OPENINGS, closing=[263, 10], follow_ups=[])
    asking = Asking(2, 60.0, tmp_path / "turns", 2, 0)
    none = write_self_prompts(target, unheard, asking, no_report)
    write_prompts(tmp_path / "prompts", none)
    assert len(read_prompts(tmp_path / "prompts")) == 0


def test_openings_are_read_back(tmp_path: Path) -> None:
    write_openings(tmp_path / "openings", OPENINGS)
    assert read_openings(tmp_path / "openings") == OPENINGS


def test_the_share_of_self_written_prompts_is_the_recipes(target: Target, tmp_path: Path) -> None:
    mixed = dataclasses.replace(numbered_prompts(30), self_written=numbered_prompts(30))
    for share, expected in ((0.5, 8), (0.25, 4), (0.0, 0), (1.0, 16)):
        folder, writing = tmp_path / str(share), Writing(16, 32, 12, least=2, self_written=share)
        write_corpus(
            target,
            mixed,
            folder,
            writing=writing,
            budget=Budget(tokens=1, seconds=60),
            seed=0,
            report=no_report,
        )
        packaged, own = read_corpus(folder).by_author()
        assert (len(packaged.items), len(own.items)) == (16 - expected, expected)


def test_of_both_kinds_one_in_64_is_held_out() -> None:
    tokens, own = torch.tensor([1, 2]), torch.tensor([False, True])
    numbers = [*range(128), *range(SELF_WRITTEN, SELF_WRITTEN + 128)]
    corpus = collect([Written(2 * number, tokens, own) for number in numbers])
    packaged, self_written = corpus.split()[1].by_author()
    assert packaged.items.tolist() == [0, 128]
    assert self_written.items.tolist() == [2 * SELF_WRITTEN, 2 * SELF_WRITTEN + 128]
