"""What /api/ps says of a loaded model (08 API-1)."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fixtures.tiny import tiny_store
from forerun.api.ollama.ps import NEVER, UNKNOWN, expiry, loaded_models
from forerun.protocol.status import Memory, RunnerStatus
from forerun.scheduler.scheduler import Resident
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

NAME = ModelName.parse("tiny")
MEMORY = Memory(weights=500, caches=60, snapshots=7, device_total=90_000)


def resident(model: StoredModel, device: str = "cpu") -> Resident:
    status = RunnerStatus(state="ready", context_length=512, memory=MEMORY, drafters=["lookup"])
    return Resident(NAME, model, status, 86400.0, device, 0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return tiny_store(tmp_path_factory.mktemp("ps"))


@pytest.mark.parametrize(("device", "on_device"), [("cpu", 0), ("cuda:0", 567), ("mps", 567)])
def test_memory_is_told_by_its_place(store: Store, device: str, on_device: int) -> None:
    """08 API-1: what the model takes, and how much of it is not the system's memory."""
    (found,) = loaded_models([resident(store.get(NAME), device)]).models
    assert (found.size, found.size_vram) == (567, on_device)
    assert (found.name, found.model, found.context_length) == ("tiny:latest", "tiny:latest", 512)
    assert found.drafters == ["lookup"]
    assert found.digest == store.get(NAME).digest.hex
    assert found.details.family == "llama"


def test_a_model_without_its_files_is_still_loaded(tmp_path: Path) -> None:
    """08 API-1: its details are unknown, and the others are shown."""
    store = tiny_store(tmp_path, seed=5)  # its own digest: details are remembered
    model = store.get(NAME)
    store.delete(NAME)
    (found,) = loaded_models([resident(model)]).models
    assert found.details == UNKNOWN
    assert found.size == 567


def test_a_stay_for_ever_is_a_date_that_clients_read() -> None:
    """08 API-1, SCH-4."""
    assert expiry(None) == expiry(1e30) == expiry(float("inf")) == NEVER
    assert expiry(86400.0) == datetime(1970, 1, 2, tzinfo=UTC)
