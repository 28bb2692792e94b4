"""The layers of a model beside its checkpoint, and a model over another one (spec 07 MF-8)."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from forerun.base.options import OptionValue
from forerun.chat.dialects.families import Speech
from forerun.importer.plan import Rule, tensors_of
from forerun.importer.sources import Source
from forerun.store import manifest as kinds
from forerun.store.manifest import DRAFT_FOLDER, DRAFT_PREFIX, Layer, ModelConfig
from forerun.store.messages import Message, encode_messages
from forerun.store.parameters import encode_parameters
from forerun.store.stored import StoredModel
from forerun.store.tensors import LogicalTensor, prevailing_kind
from forerun.store.writer import StoreWriter

# Of these a new model's own stand in for its base's.
_REPLACED = (kinds.TEMPLATE, kinds.SYSTEM, kinds.LICENSE, kinds.PARAMS, kinds.MESSAGES)


@dataclass(frozen=True, slots=True)
class Defaults:
    """How a model is used if nobody says otherwise: what a Modelfile or the catalogue states."""

    parameters: dict[str, OptionValue] = field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    licenses: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()

    def of(self, source: Source) -> "Defaults":
        """These, with the source's own template file where they have none or a blank one.

        With `ChatTemplates.load`, which goes on from the layer, this is the order of 06 TMP-5.
        """
        has_own = self.template is not None and self.template.strip()
        return self if has_own else replace(self, template=source.template)

    def layers(self, writer: StoreWriter) -> list[Layer]:
        contents = [(kinds.LICENSE, text.encode()) for text in self.licenses]
        for kind, text in ((kinds.TEMPLATE, self.template), (kinds.SYSTEM, self.system)):
            if text is not None:
                contents.append((kind, text.encode()))
        if self.parameters:
            contents.append((kinds.PARAMS, encode_parameters(self.parameters)))
        if self.messages:
            contents.append((kinds.MESSAGES, encode_messages(self.messages)))
        return [writer.add_layer(kind, data) for kind, data in contents]


def over(base: Iterable[Layer], new: list[Layer]) -> list[Layer]:
    """A base's layers unchanged, but for the kinds of defaults that are given anew (MF-8)."""
    given = {layer.media_type for layer in new} & set(_REPLACED)
    return [layer for layer in base if layer.media_type not in given] + new


def without_draft(layers: Iterable[Layer]) -> list[Layer]:
    return [layer for layer in layers if not _is_draft(layer)]


def without_target_tensors(model: StoredModel) -> list[Layer]:
    """A stored model's layers, its draft's tensors among them."""
    draft = model.draft
    kept = None if draft is None else draft.tensor_prefix
    return [
        layer
        for layer in model.manifest.layers
        if layer.media_type != kinds.TENSOR or (kept is not None and layer.name.startswith(kept))
    ]


def config_of(source: Source) -> ModelConfig:
    """The config blob of a model made from a checkpoint, before `spoken`."""
    return ModelConfig(file_type=file_type(source), origin=source.origin)


def spoken(config: ModelConfig, speech: Speech) -> ModelConfig:
    """The same, with how the model is spoken with (CAP-4)."""
    return replace(
        config,
        parser=speech.parser,
        renderer=speech.renderer,
        capabilities=speech.capabilities,
    )


def planned_kinds(source: Source) -> list[str]:
    """The type that every tensor is stored in."""
    return [plan.kind.lower() for plan in tensors_of(source.checkpoint.blobs)]


def kept_kinds(source: Source) -> list[str]:
    """The type of every tensor that stays as it was quantised, where another may be asked for."""
    plans = tensors_of(source.checkpoint.blobs) if source.quantize else []
    return [plan.kind for plan in plans if plan.rule is Rule.AFFINE]


def file_type(source: Source) -> str:
    """What `describe` counts; of what a publisher quantised the one type, or nothing (CLS-5)."""
    plans = tensors_of(source.checkpoint.blobs)
    published = {plan.kind for plan in plans if plan.rule in (Rule.GATHER, Rule.QUANTISE)}
    if published and not source.quantize:
        return published.pop() if len(published) == 1 else ""
    return prevailing_kind(
        LogicalTensor(plan.name, plan.kind.lower(), plan.shape) for plan in plans
    )


def _is_draft(layer: Layer) -> bool:
    if layer.media_type == kinds.TENSOR:
        return layer.name.startswith(DRAFT_PREFIX)
    return layer.media_type == kinds.JSON and layer.name.startswith(DRAFT_FOLDER)
