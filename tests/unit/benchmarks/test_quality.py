"""Divergence, agreement, perplexity, the table, and the file that llama.cpp's tool reads."""

import io
import math
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.distributions import (
    Quality,
    Reading,
    Scores,
    Text,
    compare,
    native_reader,
    score,
    torch_reader,
    transformers_reader,
    write_exact,
)
from benchmarks.llama_perplexity import compressed, reported, scored, write_base
from benchmarks.quality import QUESTION, bars, qualities, table, texts, whole
from fixtures.tiny import tiny_store
from forerun.kernels.native import library

PRINTED = """
Mean PPL(Q)                   :   9.812345 ±   0.301000
Mean PPL(base)                :   9.800000 ±   0.300000
====== KL divergence statistics ======
Mean    KLD:   0.001234 ±   0.000100
Maximum KLD:   0.900000
Same top p: 97.250 ± 0.400 %
"""


def logits(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def test_divergence_is_of_theirs_from_the_exact_one() -> None:
    exact, theirs = logits([0.5, 0.5], [0.9, 0.1]), logits([0.25, 0.75], [0.9, 0.1])
    found = score(exact, theirs, torch.tensor([1, 0]))
    assert found.divergence == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.0])
    assert found.same_top == (False, True)
    assert found.surprise == pytest.approx([-math.log(0.75), -math.log(0.9)])


def test_a_shift_of_all_logits_changes_nothing() -> None:
    exact = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    found = score(exact, exact + 3, torch.zeros(5, dtype=torch.int64))
    assert found.divergence == pytest.approx([0.0] * 5, abs=1e-6)
    assert all(found.same_top)


def test_quality_is_the_mean_of_its_positions() -> None:
    parts = [
        Scores((0.1,), (True,), (math.log(2),)),
        Scores((0.3, 9.0), (False, True), (math.log(8), 9.0)),
    ]
    found = Quality.of(Scores.joined(parts).between(0, 2))
    assert found == Quality(pytest.approx(0.2), 0.5, pytest.approx(4.0))
    assert qualities({"a": parts[1:]}, range(1))["a"][0].divergence == 0.3


def test_texts_of_one_length_are_as_good_as_one() -> None:
    parts = [
        Scores((0.1, 0.2), (True, True), (1.0, 2.0)),
        Scores((0.3, 0.6), (True, False), (3, 4)),
    ]
    joined = Quality.of(Scores.joined(parts))
    found = whole([Quality.of(part) for part in parts])
    assert found.divergence == pytest.approx(joined.divergence)
    assert found.same_top == joined.same_top
    assert found.perplexity == pytest.approx(joined.perplexity)


def test_the_table_has_a_row_each_and_a_column_for_all() -> None:
    rows = {"ours": [Quality(0.001, 0.99, 9.0), Quality(0.003, 0.97, 4.0)]}
    assert table(["code", "prose"], rows).splitlines() == [
        "| | code | prose | all |",
        "|---|---|---|---|",
        "| ours | 0.00100, 99.0%, 9.000 | 0.00300, 97.0%, 4.000 | 0.00200, 98.0%, 6.000 |",
    ]
    bar = bars(rows, "overall")["ours, mean KL overall"]
    assert (bar.median, bar.low, bar.high) == (pytest.approx(0.002), 0.001, 0.003)
    assert ", " not in QUESTION  # what stands behind the last one is the unit of a picture


@given(st.integers(1, 9), st.integers(0, 99), st.sampled_from([0.0, 1.0, 5.0, 40.0]))
def test_a_row_of_the_file_says_the_log_probabilities(
    vocabulary: int, seed: int, scale: float
) -> None:
    """To half a step, and down to 16 nats below the likeliest token."""
    generator = torch.Generator().manual_seed(seed)
    exact = scale * torch.randn(3, vocabulary, generator=generator)
    rows = compressed(exact.numpy())
    assert rows.shape == (3, 4 + vocabulary + vocabulary % 2)
    step, lowest = numpy.hsplit(numpy.ascontiguousarray(rows[:, :4]).view(numpy.float32), 2)
    said = torch.from_numpy(step * rows[:, 4 : 4 + vocabulary] + lowest)
    wanted = exact.log_softmax(-1)
    wanted = wanted.maximum(wanted.max(-1, keepdim=True).values - 16)
    assert (said - wanted).abs().max() <= 0.5 * 16 / 65535 + 1e-5


def test_the_file_holds_the_tokens_and_the_second_half() -> None:
    exact = numpy.random.default_rng(0).normal(size=(9, 5)).astype(numpy.float32)
    file = io.BytesIO()
    write_base(file, Text("a", tuple(range(10))), exact)
    content = file.getvalue()
    assert content[:8] == b"_logits_"
    assert numpy.frombuffer(content[8:56], numpy.int32).tolist() == [9, 5, 1, *range(9)]
    assert scored(9) == range(4, 8)
    assert content[56:] == compressed(exact[4:8]).tobytes()


def test_what_the_tool_printed_is_found() -> None:
    assert reported(PRINTED) == Quality(0.001234, pytest.approx(0.9725), 9.812345)
    with pytest.raises(AssertionError, match="Mean    KLD"):
        reported("failed to decode")


def test_everybody_reads_a_real_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact logits diverge in nothing from themselves, and rounded ones in little."""
    tiny_store(tmp_path, "llama", name="tiny", head_dim=16)
    monkeypatch.setenv("FORERUN_MODELS", str(tmp_path))
    text = texts("tiny", 40)[0]
    assert (text.name, text.positions) == ("argparse", 40)
    reading = Reading("tiny", text, tmp_path / "exact.npy")
    monkeypatch.setattr(library, "_found", library._found)  # left out below, for this test alone
    threads = torch.get_num_threads()
    try:
        exact = Quality.of(write_exact(reading))
        with pytest.raises(AssertionError, match="not built or cannot serve"):
            compare(native_reader, reading)  # weights are not quantised
        peer = Quality.of(compare(transformers_reader, reading))
        served = Quality.of(compare(torch_reader, reading))
    finally:
        torch.set_num_threads(threads)
    assert (exact.divergence, exact.same_top) == (0.0, 1.0)
    assert served.divergence < 1e-6  # in float32, as the checkpoint is
    assert 0 < peer.divergence < 0.01
    assert peer.perplexity == pytest.approx(exact.perplexity, rel=0.1)
