"""A store in a scratch folder, and imports into it in this process."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

Create = Callable[..., StoredModel]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Where the fixture `reporter` writes."""
    return tmp_path / "events"


@pytest.fixture
def reporter(events: Path) -> Iterator[Reporter]:
    descriptor = os.open(events, os.O_WRONLY | os.O_CREAT)
    yield Reporter(descriptor)
    os.close(descriptor)


@pytest.fixture
def create_model(store: Store, reporter: Reporter, tmp_path: Path) -> Create:
    """create_model(modelfile, name="made") in the test's folder."""

    def run(modelfile: str, name: str = "made") -> StoredModel:
        request = CreateRequest(name=name, modelfile=modelfile, folder=str(tmp_path))
        digest = create(request, store, reporter)
        model = store.get(ModelName.parse(name))
        assert model.digest == digest
        return model

    return run
