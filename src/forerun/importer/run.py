"""One import under way: a checkpoint becomes layers, tensor by tensor (spec 07 CFG-1, CAT-4)."""

from dataclasses import dataclass

from forerun.base.errors import StoreError
from forerun.importer.journal import Journal
from forerun.importer.plan import BlobPlan, total_bytes
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
        return self.target_tensors(source) + self.file_layers(source.checkpoint)

    def target_tensors(self, source: Source) -> list[Layer]:
        """The tensors of a target that can be loaded."""
        from forerun.importer.check import check_model  # brings torch, which takes seconds

        check_model(source.checkpoint)
        return self.tensor_layers(source, "tensors")

    def tensor_layers(self, source: Source, what: str) -> list[Layer]:
        """Every planned blob as a layer; those that an earlier try wrote are kept."""
        blobs = source.checkpoint.blobs
        meter = Meter(self.reporter, f"{_doing(source)} {what}", total_bytes(blobs))
        with self.store.downloads.folder(_journal_key(source)) as folder:
            journal = Journal(folder / "tensors")
            if self.fresh:
                journal.forget()
            return [self._tensor_layer(source.checkpoint, b, journal, meter) for b in blobs]

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
        self, checkpoint: Checkpoint, plan: BlobPlan, journal: Journal, meter: Meter
    ) -> Layer:
        blob = self._kept(journal.done(plan.name))
        if blob is not None:
            meter.advance(plan.size)
            return Layer(kinds.TENSOR, blob, plan.name)
        content = checkpoint.open(plan)
        with self.writer.blob() as file:
            sink = _Metered(file, meter, plan.size, content.size)
            write_tensors(content, sink)
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


def _doing(source: Source) -> str:
    return "quantising" if source.quantize else "converting"


@dataclass(slots=True)
class _Metered:
    """A blob that moves the meter as it grows: by the share of its source that it stands for."""

    file: BlobFile
    meter: Meter
    source_size: int
    content_size: int
    written: int = 0
    reported: int = 0

    @property
    def unreported(self) -> int:
        return self.source_size - self.reported

    def write(self, data: memoryview, /) -> int:
        written = self.file.write(data)
        self.written += written
        share = self.source_size * self.written // max(1, self.content_size)
        step = min(share, self.source_size) - self.reported
        self.reported += step
        self.meter.advance(step)
        return written
