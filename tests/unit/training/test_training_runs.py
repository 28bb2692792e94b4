"""Training a tiny head: it learns, goes on where it stopped, and what it writes serves (EGL-10)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fixtures.head_training import numbered_prompts, tiny_target
from forerun.base.errors import LoadError
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions
from forerun.models.drafts.eagle3 import load_eagle3
from forerun.nn.placement import Placement
from forerun.training.acceptance import Acceptance, measure
from forerun.training.batches import Lessons
from forerun.training.corpus import (
    Chosen,
    Corpus,
    Written,
    collect,
    counted,
    frequent,
    read_corpus,
    write_shard,
)
from forerun.training.export import CONFIG, WEIGHTS, write_head
from forerun.training.generation import Budget, write_corpus
from forerun.training.head import Head
from forerun.training.loop import Trained, Training
from forerun.training.recipe import Recipe, Writing, no_report
from forerun.training.run import Work, train
from forerun.training.target import Target

CPU = torch.device("cpu")
COLUMNS, DEPTH = 64, 3
RECIPE = Recipe(
    columns=COLUMNS, unroll=3, learning_rate=3e-3, warmup=5, batch_tokens=256, steps=250
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return tiny_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def corpus(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(
        target,
        numbered_prompts(24),
        folder,
        writing=Writing(rows=24, capacity=48, answer=40, least=8),
        budget=Budget(10**9, 60),
        seed=0,
        report=no_report,
    )
    written = read_corpus(folder)
    return written.select(written.items % 2 == 0)  # the greedy ones, which repeat themselves


@pytest.fixture(scope="module")
def ids(target: Target, corpus: Corpus) -> Tensor:
    return frequent(counted(corpus, target.model.facts.vocab_size), COLUMNS)


def _training(
    target: Target, corpus: Corpus, ids: Tensor, state: Path, recipe: Recipe = RECIPE
) -> Training:
    return Training(target, corpus, ids, recipe, state)


@pytest.fixture(scope="module")
def trained(
    target: Target, corpus: Corpus, ids: Tensor, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    state = tmp_path_factory.mktemp("state") / "state"
    return _training(target, corpus, ids, state).run(1000, no_report)


def _measured(target: Target, head: Head, ids: Tensor, corpus: Corpus) -> Acceptance:
    return measure(target, head, ids, corpus, depth=DEPTH, batch_tokens=256)


def test_loss_falls_and_acceptance_rises(
    target: Target, corpus: Corpus, ids: Tensor, trained: Trained, tmp_path: Path
) -> None:
    fresh = _training(target, corpus, ids, tmp_path / "fresh")
    before = _measured(target, fresh.trained.head, ids, corpus)
    after = _measured(target, trained.head, ids, corpus)
    assert trained.step == RECIPE.steps
    first = fresh.run(1000, no_report, until=3).loss
    assert trained.loss < 0.8 * first
    assert after.rates[0] > before.rates[0] + 0.2
    assert after.expected[-1] > before.expected[-1] + 0.2


def test_a_resumed_run_makes_the_weights_of_an_uninterrupted_one(
    target: Target, corpus: Corpus, ids: Tensor, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, steps=8)
    whole = _training(target, corpus, ids, tmp_path / "whole", recipe).run(1000, no_report)
    for until in (3, 5, None):  # each a new object, as in a new process
        part = _training(target, corpus, ids, tmp_path / "part", recipe)
        part.run(1000, no_report, until=until)
    assert part.finished
    resumed = part.trained
    assert resumed.step == whole.step == 8
    for name, value in whole.head.state_dict().items():
        assert torch.equal(value, resumed.head.state_dict()[name]), name


def test_a_state_of_another_recipe_is_refused(
    target: Target, corpus: Corpus, ids: Tensor, tmp_path: Path
) -> None:
    _training(target, corpus, ids, tmp_path / "state").run(1000, no_report, until=1)
    longer = replace(RECIPE, steps=100, minutes=3.0)
    assert _training(target, corpus, ids, tmp_path / "state", longer).trained.step == 1
    with pytest.raises(LoadError, match="another recipe"):
        _training(target, corpus, ids, tmp_path / "state", replace(RECIPE, unroll=2))


def test_minutes_end_a_run_and_are_counted_over_all_runs(
    target: Target, corpus: Corpus, ids: Tensor, tmp_path: Path
) -> None:
    recipe = replace(RECIPE, steps=None, minutes=0.02)
    first = _training(target, corpus, ids, tmp_path / "state", recipe)
    seconds = first.run(0.3, no_report).seconds
    assert not first.finished
    second = _training(target, corpus, ids, tmp_path / "state", recipe)
    assert second.trained.seconds == seconds
    assert second.run(1000, no_report).seconds >= 1.2
    assert second.finished


def test_what_is_written_proposes_what_was_trained(
    target: Target, corpus: Corpus, ids: Tensor, trained: Trained, tmp_path: Path
) -> None:
    """EGL-10: the checkpoint, read by the loader that serves, drafts the training's own chains."""
    write_head(tmp_path, target, trained.head, ids, {})
    config = json.loads((tmp_path / CONFIG).read_text())
    taps = target.taps
    draft = load_eagle3(config, [tmp_path / WEIGHTS], target.model, Placement(torch.float32, CPU))
    assert draft.column_ids is not None
    assert torch.equal(draft.column_ids, ids)
    assert tuple(config["eagle_aux_hidden_state_layer_ids"]) == taps
    columns = ids.tolist()
    accepted, reached = [0] * DEPTH, [0] * DEPTH
    tokens = corpus.tokens[: int(corpus.lengths[0])].long()
    own = corpus.own[: len(tokens)]
    with torch.inference_mode():
        hidden = target.model.forward(Batch.of(tokens, 0, CPU), None)
        rows = draft.condition(hidden.conditioning[0])
        for base in range(len(tokens) - 2):
            caches = draft.new_caches(CacheOptions(100))
            pairs = Batch.of(tokens[1 : base + 2], 0, CPU, conditioning=rows[None, : base + 1])
            step = draft.forward(pairs, (), caches)
            for depth in range(DEPTH):
                place = base + 2 + depth
                if place >= len(tokens) or not own[place]:
                    break
                best = columns[int(draft.unembed(step.hidden[0, -1:]).argmax())]
                reached[depth] += 1
                if best != tokens[place]:
                    break
                accepted[depth] += 1
                fed = step.conditioning[:, -1:]
                one = Batch.of([best], base + 1 + depth, CPU, conditioning=fed)
                step = draft.forward(one, (), caches)
    first = corpus.select(torch.arange(len(corpus.lengths)) == 0)
    found = _measured(target, trained.head, ids, first)
    # the checkpoint is in bfloat16, where near ties may fall otherwise
    assert sum(reached) > 20
    assert _near(found.reached, reached)
    assert _near(found.accepted, accepted)


def _near(one: tuple[int, ...], other: list[int]) -> bool:
    return all(abs(left - right) <= 2 for left, right in zip(one, other, strict=True))


def test_the_checkpoint_has_the_published_tensors(
    target: Target, ids: Tensor, trained: Trained, tmp_path: Path
) -> None:
    """EGL-6, EGL-7: names, dtypes, and the two maps of the vocabulary."""
    write_head(tmp_path, target, trained.head, ids, {"seed": 0})
    weights = load_file(tmp_path / WEIGHTS)
    layer = "layers.0."
    assert set(weights) == {
        *("fc.weight", "input_norm.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"),
        *(f"{layer}self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        *(f"{layer}{part}.weight" for part in ("input_layernorm", "hidden_norm")),
        f"{layer}post_attention_layernorm.weight",
    }
    assert torch.equal(torch.arange(COLUMNS) + weights["d2t"], ids)
    assert torch.equal(weights["t2d"].nonzero()[:, 0], ids)
    assert weights["fc.weight"].dtype == torch.bfloat16
    assert json.loads((tmp_path / "recipe.json").read_text()) == {"seed": 0}


def test_lessons_predict_what_the_target_wrote() -> None:
    written = [
        Written(0, torch.tensor([9, 8, 1, 2, 3]), torch.tensor([False, False, True, True, True])),
        Written(2, torch.tensor([7, 6, 5, 4]), torch.tensor([False, False, False, True])),
    ]
    lesson = Lessons(collect(written), CPU, reach=3).cut(Chosen(torch.tensor([1, 0]), 6))
    assert lesson.tokens.tolist() == [[7, 6, 5, 4, 0, 0], [9, 8, 1, 2, 3, 0]]
    assert lesson.places.tolist() == [3, 6 + 3, 6 + 4]  # the first own token has too few before it


def test_a_corpus_that_is_all_held_out_is_refused(target: Target, tmp_path: Path) -> None:
    work = Work(tmp_path, target, RECIPE, Writing(), no_report)
    work.corpus.mkdir()
    write_shard(work.corpus, collect([Written(0, torch.arange(20), torch.arange(20) > 3)]))
    with pytest.raises(LoadError, match="is held out; give it more"):
        train(work, 1)


def test_held_out_prompts_are_never_trained_on() -> None:
    tokens, own = torch.tensor([1, 2]), torch.tensor([False, True])
    corpus = collect([Written(item, tokens, own) for item in range(4 * 64)])
    kept, held = corpus.split()
    assert {item // 2 for item in held.items.tolist()} == {0, 64}
    assert all(item % 2 == 0 for item in held.items.tolist())
    assert not {item // 2 for item in kept.items.tolist()} & {0, 64}
    assert len(kept.items) == 4 * 64 - 4
