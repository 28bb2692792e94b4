"""Training that goes on from a head: what it was, for whom, and what is told where it is not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fixtures.head_training import tiny_target
from forerun.base.errors import LoadError
from forerun.training.corpus import Corpus, Written, collect, write_shard
from forerun.training.export import CONFIG, WEIGHTS, write_head
from forerun.training.loop import Trained, Training
from forerun.training.recipe import Recipe, Writing, going_on, no_report
from forerun.training.run import Work, finish, train
from forerun.training.start import read_start
from forerun.training.target import Target

IDS = torch.arange(0, 128, 2)
RECIPE = Recipe(columns=64, unroll=2, learning_rate=6e-3, warmup=5, batch_tokens=256, steps=60)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    generator = torch.Generator().manual_seed(0)
    return collect(
        [
            Written(
                2 * item, torch.randint(0, 128, (30,), generator=generator), torch.arange(30) > 5
            )
            for item in range(60, 70)
        ]
    )


@pytest.fixture(scope="module")
def trained(target: Target, corpus: Corpus) -> Trained:
    return Training(target, corpus, IDS, RECIPE, None).run(1000, no_report)


@pytest.fixture
def folder(target: Target, trained: Trained, tmp_path: Path) -> Path:
    write_head(tmp_path / "head", target, trained.head, IDS, {})
    return tmp_path / "head"


def test_a_head_that_is_read_says_what_was_written(
    target: Target, trained: Trained, folder: Path
) -> None:
    start = read_start(folder, target)
    assert torch.equal(start.ids, IDS)
    read = start.head.state_dict()
    for name, value in trained.head.state_dict().items():
        assert torch.equal(read[name], value.to(torch.bfloat16).float()), name
    state = torch.randn(3, trained.head.shape.hidden)
    torch.testing.assert_close(
        start.head.unembed(state), trained.head.unembed(state), rtol=2e-2, atol=2e-2
    )


def test_its_first_loss_is_about_its_last(
    target: Target, corpus: Corpus, trained: Trained, folder: Path
) -> None:
    start, recipe = read_start(folder, target), replace(RECIPE, learning_rate=0.0)
    fresh = Training(target, corpus, IDS, recipe, None).run(1000, no_report, until=1)
    going = Training(target, corpus, start.ids, recipe, None, start=start.head)
    first = going.run(1000, no_report, until=1).loss
    assert first < trained.loss + 0.1 < fresh.loss - 0.2


def test_a_run_that_goes_on_keeps_the_vocabulary_and_tells_its_start(
    target: Target, corpus: Corpus, folder: Path, tmp_path: Path
) -> None:
    start = read_start(folder, target)
    work = Work(tmp_path, target, RECIPE, Writing(), no_report, start, keeps_state=False)
    write_shard(work.corpus, corpus)
    opened = train(replace(work, recipe=replace(going_on(RECIPE), columns=9, steps=3)), 1000)
    assert not work.state.exists()
    made = finish(work, opened, tmp_path / "out", {})
    assert torch.equal(read_start(tmp_path / "out", target).ids, IDS)
    assert made["started_from"] == start.digest
    assert made == json.loads((tmp_path / "out" / "recipe.json").read_text())
    recipe, held = made["recipe"], made["held_out"]
    assert isinstance(recipe, dict)
    assert (recipe["columns"], recipe["learning_rate"], recipe["warmup"]) == (64, 5e-4, 5)
    assert isinstance(held, dict)
    assert {"packaged", "self_written", "acceptance"} <= held.keys()


def test_a_head_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    other = tiny_target(tmp_path, intermediate_size=128)
    with pytest.raises(LoadError, match=r"transformer_layer_config .*trained for this model"):
        read_start(folder, other)


def test_what_is_no_head_is_refused(target: Target, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no head to start from"):
        read_start(tmp_path, target)
    kept = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text("{}")
    with pytest.raises(LoadError, match="draft_vocab_size"):
        read_start(folder, target)
    (folder / CONFIG).write_text("{")
    with pytest.raises(LoadError, match="not JSON"):
        read_start(folder, target)
    (folder / CONFIG).write_text(kept)
    (folder / WEIGHTS).unlink()
    with pytest.raises(LoadError, match="no head to start from"):
        read_start(folder, target)


def test_a_wider_vocabulary_keeps_what_was_trained(target: Target, folder: Path) -> None:
    """Old columns are those of the head it starts from; new ones the most frequent it lacked."""
    start = read_start(folder, target)
    counts = torch.zeros(target.model.facts.vocab_size, dtype=torch.int64)
    lacking = [token for token in range(len(counts)) if token not in IDS.tolist()][:2]
    counts[lacking] = torch.tensor([5, 9])
    wide = start.widened(counts, len(IDS) + 1, target)
    assert wide.ids.tolist() == sorted([*IDS.tolist(), lacking[1]])
    old = torch.isin(wide.ids, IDS)
    assert torch.equal(wide.head.lm_head.weight[old], start.head.lm_head.weight)
    assert torch.isfinite(wide.head.lm_head.weight).all()
    assert start.widened(counts, len(IDS), target) is start
    assert start.widened(counts, 9000, target).ids.tolist() == list(range(len(counts)))
