"""Drafts that a model is given at its import, out of a checkpoint's folder (07 MF-8, CAT-2)."""

from dataclasses import dataclass, replace
from pathlib import Path

from forerun.importer.layers import without_draft
from forerun.importer.run import ImportRun
from forerun.importer.sources import Source, folder_source
from forerun.store.manifest import DRAFT_FOLDER, DRAFT_PREFIX, DraftConfig, Layer, ModelConfig
from forerun.store.stored import draft_architecture

PACKAGED = Path(__file__).parents[1] / "drafts"  # heads that come with forerun, a folder each


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that has been opened: every mistake in its configuration is found."""

    source: Source
    config: DraftConfig


def open_draft(folder: Path) -> Draft:
    """The draft in `folder`. LoadError naming the file at fault."""
    source = folder_source(folder, prefix=DRAFT_PREFIX)
    architecture = draft_architecture(source.checkpoint.config, str(folder / "config.json"))
    return Draft(source, DraftConfig(architecture))


def with_draft(
    run: ImportRun, draft: Draft | None, config: ModelConfig, layers: list[Layer]
) -> tuple[ModelConfig, list[Layer]]:
    """The draft's layers after the target's, in place of a draft that the base had."""
    if draft is None:
        return config, layers
    added = run.tensor_layers(draft.source, "draft tensors")
    added += run.file_layers(draft.source.checkpoint, DRAFT_FOLDER)
    return replace(config, draft=draft.config), without_draft(layers) + added
