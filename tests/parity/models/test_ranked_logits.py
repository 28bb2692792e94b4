"""The largest logits of whole models, against all of them: contract.model.RankedLogits."""

from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import CPU
from fixtures.quantised import quantised
from fixtures.tiny import Family
from fixtures.toy import ListSink
from forerun.contract.batch import Batch
from forerun.contract.model import RankedLogits, TargetModel
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.models.decoder import DecoderModel
from forerun.runner.compose import assemble
from forerun.sampling.options import SamplingOptions

TOKENS = [(37 * place + place * place) % 256 for place in range(20)]


def hidden_of(model: TargetModel) -> torch.Tensor:
    return model.forward(Batch.of(TOKENS, 0, CPU), None).hidden[0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_native_model_tells_its_largest_logits(
    tmp_path: Path, family: Family, tied: bool
) -> None:
    """04 ORD-6, WID-1: bit for bit, for one row and for several."""
    model = quantised(tmp_path, family, tie_word_embeddings=tied).load(torch.bfloat16)
    assert model.facts.own_threads
    assert isinstance(model, RankedLogits)
    with torch.inference_mode():
        hidden = hidden_of(model)
        values, ids = model.unembed(hidden).sort(dim=-1, descending=True, stable=True)
        for rows in (slice(0, 1), slice(3, 8)):
            best = model.best(hidden[rows], 40)
            assert best is not None
            assert torch.equal(best.values, values[rows, :40])
            assert torch.equal(best.ids, ids[rows, :40])
        assert model.best(hidden, 1000) is None


def test_a_model_that_needs_all_logits_says_so(tmp_path: Path) -> None:
    """GM3-7: a softcap may make equals of two logits; and other heads write them all anyway."""
    capped = quantised(tmp_path / "capped", "gemma3", final_logit_softcapping=2.0).load()
    plain = quantised(tmp_path / "plain", "llama").load(native=False)
    for model, native in ((capped, True), (plain, False)):
        assert model.facts.own_threads == native
        assert isinstance(model, RankedLogits)
        with torch.inference_mode():
            assert model.best(hidden_of(model), 1) is None


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(temperature=0.0),
        SamplingOptions(temperature=0.9, top_k=40, top_p=0.9, seed=7),
        SamplingOptions(temperature=0.9, top_k=20, repeat_penalty=1.3, seed=7),
    ],
    ids=["greedy", "seeded", "penalised"],
)
def test_answers_are_equal_and_made_without_the_other_logits(
    tmp_path: Path, options: SamplingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """05 DEC-7, 04 SED-2."""
    model = quantised(tmp_path, "llama").load(torch.bfloat16)

    def answer() -> list[int]:
        sink = ListSink()
        with torch.inference_mode():
            job = Job(tuple(TOKENS), frozenset(), options, 30, sink, sink.cancelled)
            generate(assemble(model, 256), job)
        assert sink.error is None
        return sink.tokens

    with monkeypatch.context() as patch:
        patch.setattr(DecoderModel, "best", lambda *_: None)
        whole = answer()
    monkeypatch.delattr(DecoderModel, "unembed")
    assert answer() == whole
