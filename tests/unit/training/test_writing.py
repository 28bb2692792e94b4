"""What the target writes for a head: its own text, whatever rows stand beside each other."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.head_training import numbered_prompts, prompts, tiny_target
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions
from forerun.training.corpus import Corpus, read_corpus, shards
from forerun.training.encoded import EncodedPrompts, read_prompts, write_prompts
from forerun.training.generation import Budget, write_corpus
from forerun.training.recipe import Writing, no_report
from forerun.training.target import Target

SMALL = Writing(rows=5, capacity=32, answer=12, least=2)
ALL = Budget(tokens=10**9, seconds=60)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


def _write(
    target: Target,
    given: EncodedPrompts,
    folder: Path,
    writing: Writing = SMALL,
    budget: Budget = ALL,
    seed: int = 3,
) -> Corpus:
    write_corpus(target, given, folder, writing=writing, budget=budget, seed=seed, report=no_report)
    return read_corpus(folder)


def _texts(corpus: Corpus) -> dict[int, list[int]]:
    parts = corpus.tokens.split(corpus.lengths.tolist())
    return {item: part.tolist() for item, part in zip(corpus.items.tolist(), parts, strict=True)}


def _greedy(target: Target, tokens: Tensor, most: int, eos: frozenset[int]) -> list[int]:
    """Prompt and greedy answer, by one sequence and a cache that grows."""
    caches = target.model.new_caches(CacheOptions(64))
    text, new = tokens.tolist(), tokens.tolist()
    with torch.inference_mode():
        for _ in range(most):
            batch = Batch.of(new, len(text) - len(new), CPU)
            hidden = target.model.forward(batch, caches).hidden[0, -1:]
            new = [int(target.model.unembed(hidden).argmax())]
            text += new
            if new[0] in eos:
                break
    return text


def test_greedy_rows_write_what_one_sequence_writes(target: Target, tmp_path: Path) -> None:
    given = numbered_prompts(9)
    texts = _texts(_write(target, given, tmp_path))
    assert sorted(texts) == sorted(range(18))  # each prompt twice: greedy and sampled
    for number in range(9):
        alone = _greedy(target, given.prompt(number), SMALL.answer, given.eos)
        assert texts[2 * number] == alone


def test_sampled_rows_do_not_depend_on_their_neighbours(target: Target, tmp_path: Path) -> None:
    given = numbered_prompts(9)
    few = _texts(_write(target, given, tmp_path / "few", Writing(2, 32, 12, least=2)))
    many = _texts(_write(target, given, tmp_path / "many", Writing(18, 32, 12, least=2)))
    assert few == many
    other = _texts(_write(target, given, tmp_path / "other", seed=4))
    assert other != many
    assert all(other[item] == many[item] for item in range(0, 18, 2))  # greedy has no seed


def test_own_tokens_are_those_after_the_prompt(target: Target, tmp_path: Path) -> None:
    corpus = _write(target, numbered_prompts(4), tmp_path)
    for start, length in zip(corpus.starts.tolist(), corpus.lengths.tolist(), strict=True):
        own = corpus.own[start : start + length].tolist()
        assert own == [False] * 3 + [True] * (length - 3)


def test_a_follow_up_takes_the_place_of_the_end_of_an_answer(tmp_path: Path) -> None:
    target = tiny_target(tmp_path)
    prompt = torch.tensor([70, 71, 72])
    first = _greedy(target, prompt, 6, frozenset())
    stop = first[-1]
    assert stop not in first[3:-1]
    given = EncodedPrompts(*_parts(prompt.tolist(), [stop, 90, 91]), frozenset({stop}))
    texts = _texts(_write(target, given, tmp_path / "corpus"))
    told = torch.tensor([*first, 90, 91])
    assert texts[0] == _greedy(target, told, SMALL.answer, given.eos)
    corpus = read_corpus(tmp_path / "corpus")
    place = corpus.items.tolist().index(0)
    start = int(corpus.starts[place])
    own = corpus.own[start : start + int(corpus.lengths[place])].tolist()
    answered = len(texts[0]) - len(told)
    assert own == [False] * 3 + [True] * 6 + [False] * 2 + [True] * answered


def _parts(prompt: list[int], further: list[int]) -> tuple[Tensor, Tensor]:
    made = prompts((prompt, further))
    return made.tokens, made.ends


def test_it_goes_on_where_it_stopped(target: Target, tmp_path: Path) -> None:
    given = numbered_prompts(12)
    whole = _texts(_write(target, given, tmp_path / "whole"))
    _write(target, given, tmp_path / "parts", budget=Budget(tokens=60, seconds=60))
    assert len(_texts(read_corpus(tmp_path / "parts"))) < len(whole)
    in_parts = _texts(_write(target, given, tmp_path / "parts"))
    assert len(shards(tmp_path / "parts")) > 1
    assert in_parts.keys() == whole.keys()
    # what was cut short by the first stop is a beginning of what it would have been
    assert all(whole[item][: len(text)] == text for item, text in in_parts.items())


def test_early_prompts_are_answered_before_all_others(target: Target, tmp_path: Path) -> None:
    """A user's own: in every order, and although the text ends long before the prompts do."""
    given = dataclasses.replace(numbered_prompts(20), early=3)
    for seed in range(3):
        writing, budget = Writing(6, 32, 12, least=2), Budget(tokens=1, seconds=60)
        texts = _texts(_write(target, given, tmp_path / str(seed), writing, budget, seed))
        assert set(texts) == set(range(6))


def test_writing_goes_on_until_there_is_text_to_train_on(target: Target, tmp_path: Path) -> None:
    """However little time there is: here the first prompt of both rows is held out."""
    given = dataclasses.replace(numbered_prompts(20), early=1)
    writing, no_time = Writing(2, 32, 12, least=2), Budget(tokens=10**9, seconds=0)
    corpus = _write(target, given, tmp_path, writing, no_time)
    assert 0 in corpus.items
    assert len(corpus.split()[0].lengths) > 0
    assert len(corpus.lengths) <= 4


def test_a_prompt_that_leaves_no_room_is_left_out(target: Target, tmp_path: Path) -> None:
    given = prompts(([65] * 40, []), ([66, 67], []))
    assert set(_texts(_write(target, given, tmp_path))) == {2, 3}


def test_prompts_are_read_back(tmp_path: Path) -> None:
    given = dataclasses.replace(prompts(([1, 2, 3], [4]), ([5], [])), early=1)
    write_prompts(tmp_path / "prompts", given)
    found = read_prompts(tmp_path / "prompts")
    assert (len(found), found.early) == (2, 1)
    assert found.prompt(0).tolist() == [1, 2, 3]
    assert found.follow_up(0).tolist() == [4]
    assert found.prompt(1).tolist() == [5]
    assert found.follow_up(1).tolist() == []
    assert found.eos == given.eos
