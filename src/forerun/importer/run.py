"""One import under way: a checkpoint becomes layers, tensor by tensor (spec 07 CFG-1, CAT-4)."""

from dataclasses import dataclass

from forerun.base.errors import StoreError
from forerun.importer.journal import Journal
from forerun.importer.plan import TensorPlan, total_bytes
from forerun.importer.progress import Meter, Reporter
from forerun.importer.sources import Checkpoint, Source
from forerun.importer.write import write_tensors
from forerun.store import manifest as kinds
from forerun.store.blobs import Blob
from forerun.store.manifest import Layer
from forerun.store.store import Store
from forerun.store.writer import BlobFile, StoreWriter


@dataclass(frozen=True, slots=True)
class ImportRun:
    """Where an import reads and writes, and who hears of it."""

    store: Store
    writer: StoreWriter
    reporter: Reporter
    fresh: bool = False  # believe no journal: a blob that it names may be damaged

    def model_layers(self, source: Source) -> list[Layer]:
        """A target model that can be loaded: its tensors, then its configuration files."""
        from forerun.importer.check import check_model  # brings torch, which takes seconds

        check_model(source.checkpoint)
        return self.tensor_layers(source, "tensors") + self.file_layers(source.checkpoint)

    def tensor_layers(self, source: Source, what: str) -> list[Layer]:
        """Every tensor as a layer of its own; those that an earlier try wrote are kept."""
        plans = source.checkpoint.plans
        meter = Meter(self.reporter, f"converting {what}", total_bytes(plans))
        with self.store.downloads.folder(_journal_key(source)) as folder:
            journal = Journal(folder / "tensors")
            if self.fresh:
                journal.forget()
            return [self._tensor_layer(source.checkpoint, p, journal, meter) for p in plans]

    def file_layers(self, checkpoint: Checkpoint, folder: str = "") -> list[Layer]:
        """The configuration files, by name under `folder`."""
        return [
            self.writer.add_layer(kinds.JSON, data, folder + name)
            for name, data in sorted(checkpoint.files.items())
        ]

    def forget(self, source: Source) -> None:
        """Drop what was kept for another try, once the manifest is written."""
        self.store.downloads.discard(_journal_key(source))

    def _tensor_layer(
        self, checkpoint: Checkpoint, plan: TensorPlan, journal: Journal, meter: Meter
    ) -> Layer:
        blob = self._kept(journal.done(plan.name))
        if blob is not None:
            meter.advance(plan.size)
            return Layer(kinds.TENSOR, blob, plan.name)
        with self.writer.blob() as file:
            sink = _Metered(file, meter, plan.size)
            write_tensors(checkpoint.open(plan), sink)
        journal.add(plan.name, file.blob)
        meter.advance(sink.unreported)
        return Layer(kinds.TENSOR, file.blob, plan.name)

    def _kept(self, blob: Blob | None) -> Blob | None:
        """The blob if it is still there; from now on nobody collects it."""
        if blob is None:
            return None
        try:
            self.writer.keep([blob])
        except StoreError:
            return None
        return blob


def _journal_key(source: Source) -> str:
    return f"import-{source.key}"


@dataclass(slots=True)
class _Metered:
    """A blob that moves the meter as it grows, by no more than its source has."""

    file: BlobFile
    meter: Meter
    unreported: int

    def write(self, data: memoryview, /) -> int:
        written = self.file.write(data)
        step = min(written, self.unreported)
        self.unreported -= step
        self.meter.advance(step)
        return written
