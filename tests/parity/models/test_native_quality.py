"""The native kernels beside float32 on the same weights, over the benchmark's texts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.distributions import Quality, Reading
from benchmarks.quality import OURS, measured, texts, whole
from fixtures.smollm2 import NAME, models_folder, smollm2

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(900)]

POSITIONS = 2000  # of each text
MOST_DIVERGENCE = 0.0005  # nats
LEAST_AGREEMENT = 0.99


def test_the_native_kernels_predict_what_the_weights_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """KER-1: mean KL of at most 0.0005, and 99 % of the likeliest tokens are the same."""
    smollm2()
    monkeypatch.setenv("FORERUN_MODELS", str(models_folder()))
    with TemporaryDirectory() as folder:
        readings = [
            Reading(str(NAME), text, Path(folder) / f"{text.name}.npy")
            for text in texts(str(NAME), POSITIONS)
        ]
        scores = measured(readings, [OURS], processes=2)
    found = whole([Quality.of(text) for text in scores[OURS]])
    assert found.divergence <= MOST_DIVERGENCE, found
    assert found.same_top >= LEAST_AGREEMENT, found
