"""Rounds that are timed leave everything as it was; what is made for the hybrid is sane."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.contenders import Work
from benchmarks.hybrid_checkpoint import INTERVAL, Shape, configuration, sizes, write_hybrid
from benchmarks.hybrid_contenders import Arrivals, RoundDriver, Rounds, hybrid_peer
from fixtures.hybrid import loaded_hybrid
from forerun.contract.batch import Batch

SMALL = Shape(layers=4, hidden=64, vocabulary=1200)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid"), SMALL)


def test_the_whole_one_is_as_large_as_it_says() -> None:
    """Within a few percent of the published model's 0.75 billion, with another vocabulary."""
    found = sizes(configuration(Shape()))
    layers = [name for name in found if name.startswith("model.layers.")]
    assert sum(found[name].numel() for name in layers) == pytest.approx(0.498e9, rel=0.01)
    assert sum("linear_attn.A_log" in name for name in layers) == 18
    assert found["model.embed_tokens.weight"] == (151_936, 1024)
    assert found["mtp.fc.weight"] == (1024, 2048)
    assert found["mtp.layers.0.self_attn.q_proj.weight"] == (2 * 8 * 256, 1024)
    assert "lm_head.weight" not in found
    with pytest.raises(AssertionError, match="multiple"):
        Shape(layers=INTERVAL + 1)


def test_transformers_reads_all_of_it_and_stays_sane(checkpoint: Path) -> None:
    model, told = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, output_loading_info=True
    )
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.arange(200)[None]
    with torch.inference_mode():
        states = model.model(ids, output_hidden_states=True).hidden_states
        logits = model.lm_head(states[-1]).float()
    sizes = [float(state.float().square().mean().sqrt()) for state in states[1:]]
    assert min(sizes) > 0.3
    assert max(sizes) < 5
    assert 0.5 < float(logits.std()) < 2


def test_the_same_seed_makes_the_same_bytes(tmp_path: Path, checkpoint: Path) -> None:
    again = write_hybrid(tmp_path / "again", SMALL) / "model.safetensors"
    assert again.read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    other = write_hybrid(tmp_path / "other", SMALL, seed=1) / "model.safetensors"
    assert other.read_bytes() != again.read_bytes()


@pytest.mark.parametrize("work", [Work("decode", 7, 12), Work("prefill", 0, 9)])
def test_transformers_decodes_and_prefills(checkpoint: Path, work: Work) -> None:
    threads = torch.get_num_threads()
    try:
        assert hybrid_peer(checkpoint, 1)(work) > 0
    finally:
        torch.set_num_threads(threads)


def test_the_prompt_is_no_arrival() -> None:
    arrivals = Arrivals()
    for _ in range(3):
        arrivals.put(torch.zeros(1))
    arrivals.end()
    assert len(arrivals.at) == 2


def test_rounds_are_timed_from_the_same_state_each_time() -> None:
    """What a driver ran before, kept or refused, is nowhere in what it runs from."""
    engine = loaded_hybrid(look_ahead_keys=0)
    driver = RoundDriver(engine)

    def base() -> torch.Tensor:
        driver.rewind(20)
        assert all(cache is None or cache.offset == 20 for cache in engine.caches)
        with torch.inference_mode():
            return engine.model.forward(Batch.of([1, 2], 20, CPU), engine.caches).hidden.clone()

    first = driver.run(Rounds(20, 4, (0, None, 4, 2)))
    expected = base()
    driver.run(Rounds(20, 2, (None,)))
    assert torch.equal(base(), expected)
    assert len(first.rounds) == len(first.rollback) == 4
    assert all(0 <= part < whole for part, whole in zip(first.rollback, first.rounds, strict=True))
    assert first.rollback[1] < first.rollback[0]  # nothing to begin or to commit
    assert first.total == sum(first.rounds)
    driver.run(Rounds(5, 1, (1,)))
    assert not torch.equal(base(), expected)  # another text of that length


def test_a_round_may_be_of_one_column() -> None:
    times = RoundDriver(loaded_hybrid(look_ahead_keys=0)).run(Rounds(1, 0, (0, 0)))
    assert 0 < sum(times.rollback) < times.total
