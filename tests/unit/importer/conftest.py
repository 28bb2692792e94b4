"""A store in a scratch folder, and imports into it in this process."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fixtures.tiny import tiny_folder
from forerun.base.errors import ForerunError
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

Create = Callable[..., StoredModel]
Refuse = Callable[[str, str], None]


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


@pytest.fixture
def refuse(create_model: Create, store: Store) -> Refuse:
    """refuse(modelfile, message): creating fails with that message and leaves no model (CFG-6)."""

    def run(modelfile: str, message: str) -> None:
        with pytest.raises(ForerunError, match=message):
            create_model(modelfile)
        assert store.entries() == []

    return run


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("pristine"), "llama", dtype=torch.bfloat16)


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A tiny llama in a folder named `tiny` beside the Modelfile, to change at will."""
    return Path(shutil.copytree(pristine, tmp_path / "tiny"))
