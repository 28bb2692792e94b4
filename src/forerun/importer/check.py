"""Whether a model can be loaded, found out before anything of it is written (F13, 05 LOD-9)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from forerun.base.errors import LoadError, RequestError, one_line
from forerun.base.json_types import JsonObject
from forerun.contract.model import TargetModel
from forerun.importer.drafts import Draft
from forerun.importer.plan import tensors_of
from forerun.importer.sources import Checkpoint, Source
from forerun.models.drafts.eagle3 import check_eagle3
from forerun.models.drafts.eagle3_config import ARCHITECTURES, asked_taps
from forerun.models.paper import check_shapes, on_paper
from forerun.store.inventory import CONFIG
from forerun.store.manifest import DRAFT_PREFIX, JSON, DraftConfig
from forerun.store.names import ModelName
from forerun.store.stored import StoredModel
from forerun.store.tensors import LogicalTensor
from forerun.tokenizer.tokenizer import Tokenizer
from forerun.tokenizer.vocabulary import Vocabulary, checked, vocabulary_of


@dataclass(frozen=True, slots=True)
class Paper:
    """A model's configuration files, and the shapes of its tensors by the names it gives them."""

    config: JsonObject
    shapes: Mapping[str, tuple[int, ...]]
    files: Mapping[str, bytes] = field(default_factory=dict)


def planned(checkpoint: Checkpoint, prefix: str = "") -> Paper:
    """One that is to be imported. prefix: before the names that its tensors get in the store."""
    shapes = {plan.name.removeprefix(prefix): plan.shape for plan in tensors_of(checkpoint.blobs)}
    return Paper(checkpoint.config, shapes, checkpoint.files)


def stored_target(model: StoredModel) -> Paper:
    """The target of a model of the store."""
    files = {layer.name: model.read(layer) for layer in model.manifest.of_type(JSON)}
    return Paper(model.json(CONFIG), _shapes(model.target_tensors()), files)


def stored_head(model: StoredModel, draft: DraftConfig) -> Paper:
    """The EAGLE-3 head that a model of the store has; it has no tokenizer of its own."""
    shapes = _shapes(model.draft_tensors(), draft.tensor_prefix)
    return Paper(model.json(draft.config), shapes)


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tensor, config field or tokenizer file at fault."""
    paper = planned(checkpoint)
    check_shapes(paper.config, paper.shapes)
    Tokenizer.load(paper.files)


def check_pair(
    name: ModelName,
    base: Source | StoredModel,
    draft: Draft | None,
    parameters: Mapping[str, object],
) -> None:
    """Whether a draft can propose for its target, as far as no weight has to be read for it.

    name        of the model that is to have both, and `parameters`
    draft       a new one; None: an EAGLE-3 head that the base has is kept, and told what to read

    In the words of a load, where it is checked again what is held against each other: RequestError
    for the draft and the pair, LoadError for a target that could not be loaded without a draft.
    """
    found = _draft_of(base) if draft is None else _planned_draft(draft)
    with _told_of_draft(name):
        taps = asked_taps(parameters, None if found is None else found.architecture)
    if found is None:
        return
    target = planned(base.checkpoint) if isinstance(base, Source) else stored_target(base)
    model = on_paper(target.config, target.shapes)
    paper = found.paper
    if found.architecture in ARCHITECTURES:
        with _told_of_draft(name):
            check_eagle3(paper.config, paper.shapes, model, taps=taps)
        return
    words = _vocabulary(target, model)
    with _told_of_draft(name):
        checked(words, _vocabulary(paper, on_paper(paper.config, paper.shapes)))


@contextmanager
def _told_of_draft(name: ModelName) -> Iterator[None]:
    """The pair is the caller's own, so that the error is as well."""
    try:
        yield
    except LoadError as error:
        raise RequestError(f"the draft of {name}: {one_line(error)}") from None


@dataclass(frozen=True, slots=True)
class _PaperDraft:
    architecture: str  # as the manifest says it
    paper: Paper


def _planned_draft(draft: Draft) -> _PaperDraft:
    return _PaperDraft(draft.config.architecture, planned(draft.source.checkpoint, DRAFT_PREFIX))


def _draft_of(base: Source | StoredModel) -> _PaperDraft | None:
    if isinstance(base, Source):
        return None
    draft = base.draft
    return None if draft is None else _PaperDraft(draft.architecture, stored_head(base, draft))


def _vocabulary(paper: Paper, model: TargetModel) -> Vocabulary:
    return vocabulary_of(Tokenizer.load(paper.files), model.facts.vocab_size)


def _shapes(tensors: Iterable[LogicalTensor], prefix: str = "") -> dict[str, tuple[int, ...]]:
    return {tensor.name.removeprefix(prefix): tensor.shape for tensor in tensors}
