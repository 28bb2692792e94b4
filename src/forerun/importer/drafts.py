"""Drafts that a model is given at its import, out of a checkpoint's folder (07 MF-8, CAT-2)."""

from dataclasses import dataclass, replace
from pathlib import Path

from forerun.importer.layers import without_draft
from forerun.importer.run import ImportRun
from forerun.importer.sources import Source, folder_source
from forerun.store.blobs import Digest
from forerun.store.manifest import DRAFT_FOLDER, DRAFT_PREFIX, DraftConfig, Layer, ModelConfig
from forerun.store.stored import StoredModel, draft_architecture

PACKAGED = Path(__file__).parents[1] / "drafts"  # heads that come with forerun, a folder each


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that has been opened: every mistake in its configuration is found."""

    source: Source
    config: DraftConfig


def open_draft(folder: Path, quantize: str = "") -> Draft:
    """The draft in `folder`, its weights to be of type `quantize` where that is given.

    LoadError naming the file at fault.
    """
    source = folder_source(folder, prefix=DRAFT_PREFIX, quantize=quantize, draft=True)
    architecture = draft_architecture(source.checkpoint.config, str(folder / "config.json"))
    return Draft(source, DraftConfig(architecture))


def has_draft(model: StoredModel, folder: Path | None) -> bool:
    """Whether the model's draft is the one in `folder`, by its configuration files; None: none.

    Where `training` wrote it, one of them says what it was made with.
    """
    held = {
        layer.name: layer.blob.digest
        for layer in model.manifest.layers
        if layer.name.startswith(DRAFT_FOLDER)
    }
    files = [] if folder is None else folder.glob("*.json")
    return held == {DRAFT_FOLDER + file.name: Digest.of(file.read_bytes()) for file in files}


def with_draft(
    run: ImportRun, draft: Draft | None, config: ModelConfig, layers: list[Layer]
) -> tuple[ModelConfig, list[Layer]]:
    """The draft's layers after the target's, in place of a draft that the base had."""
    if draft is None:
        return config, layers
    added = run.tensor_layers(draft.source, "draft tensors")
    added += run.file_layers(draft.source.checkpoint, DRAFT_FOLDER)
    return replace(config, draft=draft.config), without_draft(layers) + added
