"""A store in a scratch folder, and a short way to put a model into it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from forerun.store.manifest import Manifest
from forerun.store.store import Store
from unit.store.storing import put_model


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def put(store: Store) -> Callable[..., Manifest]:
    return partial(put_model, store)
