"""Rows in plain Python against the tensors whose meaning they have: 04 ORD, PEN, SED."""

import math
from collections import Counter

import pytest
import torch

from forerun.sampling import host_row
from forerun.sampling.distribution import Distribution
from forerun.sampling.filters import min_p, normalise, softmax, top_p
from forerun.sampling.noise import Purpose, draw_key, gumbel, hashes, host_hash, seed_key
from forerun.sampling.options import SamplingOptions
from forerun.sampling.penalties import penalise
from forerun.sampling.penalty_history import Window

IDS = [0, 1, 77, 49_151, 151_935, 2**31 - 1]
WIDE = host_row.MOST_COLUMNS + 1


def keys(count):
    return [draw_key(seed_key(seed), seed * 3, Purpose.TARGET) for seed in range(count)]


def test_the_integers_are_those_of_the_device():
    """SED-1, SED-6: 64 bits of every token, whatever the key's sign."""
    chosen = keys(20)
    assert {key < 0 for key in chosen} == {True, False}
    for key in chosen:
        found = [host_hash(key, token) for token in IDS]
        signed = hashes(torch.tensor([key]), torch.tensor(IDS))[0].tolist()
        assert found == [number % 2**64 for number in signed]


def test_a_draw_is_the_argmax_of_log_probability_and_noise():
    """ORD-6, SED-1: a row of more columns is drawn by tensors, and nearly all draws are equal."""
    generator = torch.Generator().manual_seed(3)
    for key in keys(200):
        probs = torch.rand(1, 12, generator=generator)
        ids = torch.randperm(49_152, generator=generator)[None, :12]
        score = probs.double().log() + gumbel(torch.tensor([key]), ids).double()
        best, second = score[0].topk(2).values.tolist()
        token = host_row.draw(probs[0].tolist(), ids[0].tolist(), key)
        assert token == ids[0, score.argmax()] or best - second < 1e-4


def test_narrow_and_wide_rows_draw_alike():
    """DST-5, SED-2: columns without probability change no draw, but how it is made."""
    probs = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(6).expand(40, -1) * 1000
    narrow = Distribution(probs, ids).draw(torch.tensor(keys(40)))
    pad = torch.nn.functional.pad
    wide = Distribution(pad(probs, (0, WIDE)), pad(ids, (0, WIDE))).draw(torch.tensor(keys(40)))
    assert torch.equal(narrow, wide)
    assert len(set(narrow.tolist())) > 3


def test_of_equal_scores_the_smaller_id_is_drawn(monkeypatch):
    """ORD-6."""
    monkeypatch.setattr(host_row, "_gumbel_cost", lambda *_: 0.5)
    assert host_row.draw([0.25, 0.5, 0.5], [1, 9, 4], 0) == 4


def test_a_point_mass_needs_no_noise_and_nothing_is_no_token(monkeypatch):
    """SED-5, ORD-9."""
    monkeypatch.delattr(host_row, "_gumbel_cost")
    assert host_row.draw([0.0, 1e-30, 0.0], [3, 8, 5], 0) == 8
    assert host_row.draw([0.0, 0.0], [3, 8], 0) == host_row.NO_TOKEN


@pytest.mark.parametrize("scale", [0.1, 3.0, 1e4])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_p": 1.0},
        {"temperature": 1.0, "top_p": 0.6},
        {"temperature": 2.0, "top_p": 0.99, "min_p": 0.05},
        {"temperature": 1.0, "top_p": 1.0, "min_p": 1.0},
        {"temperature": 1e-4, "top_p": 0.9},
    ],
    ids=str,
)
def test_a_row_is_cut_as_tensors_are(options, scale):
    """ORD-1, ORD-3, ORD-4, ORD-5, ORD-8."""
    made = SamplingOptions(**options)
    scores = torch.randn(1, 40, generator=torch.Generator().manual_seed(2)) * scale
    scores = scores.sort(descending=True).values
    want = min_p(top_p(softmax(scores, made.temperature), made.top_p), made.min_p)
    found = torch.tensor([host_row.cut(scores[0].tolist(), made)])
    torch.testing.assert_close(found, normalise(want), rtol=1e-5, atol=1e-7)


def test_a_row_without_scores_has_no_probability():
    """ORD-9: nor is there a NaN."""
    assert host_row.cut([-math.inf] * 3, SamplingOptions(top_p=0.9)) == [0.0] * 3


@pytest.mark.parametrize("repeat", [1.0, 1.1, 1e30])
@pytest.mark.parametrize("presence", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("frequency", [0.0, 0.7, 2.0])
def test_penalties_are_those_of_tensors_bit_for_bit(repeat, presence, frequency):
    """PEN-2, PEN-3, PEN-4: of any magnitude, and in order of the scores they leave."""
    options = SamplingOptions(
        temperature=0,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
    ).normalised(vocab_size=60, context_length=64)
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(60, generator=generator) * 10 ** torch.linspace(-30, 12, 60)
    scores[torch.randperm(60, generator=generator)[:5]] = -torch.inf
    tokens = torch.randint(0, 60, (1, 40), generator=generator)
    want = penalise(scores[None], Window(tokens, None), options)[0]
    counts = Counter(tokens[0].tolist())
    found, ids = host_row._penalised(scores.tolist(), list(range(60)), counts, options, 60)
    order = sorted(range(60), key=lambda token: (-want[token].item(), token))
    assert ids == order
    assert found == want[order].tolist()


def test_probabilities_are_fp32_and_noise_is_finite(monkeypatch):
    """SED-1: a draw from a tensor of them is the same one; the largest hash has noise too."""
    probs = host_row.cut([3.0, 2.0, 0.3], SamplingOptions(temperature=0.7, top_p=1.0))
    assert torch.tensor(probs).tolist() == probs
    monkeypatch.setattr(host_row, "host_hash", lambda *_: 2**64 - 1)
    assert host_row.draw([0.4, 0.6], [1, 2], 0) == 2
