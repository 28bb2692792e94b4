"""One model of the store, opened: what the runner, the importer and `show` ask of it (CFG-5)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forerun.base.errors import LoadError, RequestError, StoreError
from forerun.base.json_types import JsonObject
from forerun.base.options import OptionValue
from forerun.base.shown import shown
from forerun.store import manifest as kinds
from forerun.store.blobs import Blobs, Digest
from forerun.store.fields import Fields
from forerun.store.headers import read_header
from forerun.store.manifest import DRAFT_FOLDER, DraftConfig, Layer, Manifest, ModelConfig
from forerun.store.messages import Message, decode_messages
from forerun.store.names import ModelName
from forerun.store.parameters import decode_parameters
from forerun.store.tensors import LogicalTensor, logical_tensors, weights_summary

_OWN_HEAD = "mtp.fc."  # of a checkpoint that brings a head for drafting (06 QWN-13)
_DRAFT_CONFIG = f"{DRAFT_FOLDER}config.json"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A manifest with the blobs it names. `digest` is the manifest's: the model's identity."""

    name: ModelName
    digest: Digest
    manifest: Manifest
    blobs: Blobs

    @property
    def config(self) -> ModelConfig:
        """The config blob, read and checked."""
        return ModelConfig.decode(self.blobs.read(self.manifest.config), f"config of {self.name}")

    @property
    def tensors(self) -> tuple[Layer, ...]:
        """All tensor layers, the draft's among them."""
        return self.manifest.of_type(kinds.TENSOR)

    def file(self, layer: Layer) -> Path:
        """Where a layer's bytes lie; StoreError if they are missing or cut short."""
        return self.blobs.file(layer.blob)

    def read(self, layer: Layer) -> bytes:
        """A layer's bytes, checked against its digest; for small layers."""
        return self.blobs.read(layer.blob)

    def json_layer(self, path: str) -> Layer | None:
        """The layer of a configuration file such as `tokenizer.json`, None if there is none."""
        named = (layer for layer in self.manifest.of_type(kinds.JSON) if layer.name == path)
        return next(named, None)

    def json(self, path: str) -> JsonObject:
        """The object in a configuration file. LoadError if the model has no such file."""
        layer = self.json_layer(path)
        if layer is None:
            raise LoadError(f"model {shown(str(self.name))} has no {path}; create it again")
        return Fields.parse(self.read(layer), f"{path} of {self.name}").values

    @property
    def draft(self) -> DraftConfig | None:
        """What the draft is; from its own config where an old manifest does not say (CFG-5)."""
        stated = self.config.draft
        if stated is not None or self.json_layer(_DRAFT_CONFIG) is None:
            return stated
        return DraftConfig(draft_architecture(self.json(_DRAFT_CONFIG), _DRAFT_CONFIG))

    @property
    def template(self) -> str | None:
        """The chat template, None where the checkpoint's own files have it."""
        return self._text(kinds.TEMPLATE)

    @property
    def system(self) -> str | None:
        """The system prompt of the Modelfile."""
        return self._text(kinds.SYSTEM)

    @property
    def licenses(self) -> tuple[str, ...]:
        """Licence texts, in order."""
        layers = self.manifest.of_type(kinds.LICENSE)
        return tuple(self._decoded(layer) for layer in layers)

    @property
    def parameters(self) -> dict[str, OptionValue]:
        """The Modelfile's parameters, checked against the table of options."""
        layers = self.manifest.of_type(kinds.PARAMS)
        if not layers:
            return {}
        return decode_parameters(self.read(layers[0]), f"parameters of {self.name}")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages that come before a chat's own."""
        layers = self.manifest.of_type(kinds.MESSAGES)
        if not layers:
            return ()
        return decode_messages(self.read(layers[0]), f"messages of {self.name}")

    @property
    def has_own_head(self) -> bool:
        """Whether the checkpoint brought one that drafts; one layer, which attends."""
        return any(layer.name.startswith(_OWN_HEAD) for layer in self.tensors)

    def target_tensors(self) -> Iterator[LogicalTensor]:
        """What the target's tensors are, the draft's left out; no weight is read.

        StoreError if a blob is missing or damaged.
        """
        return self._logical(of_draft=False)

    def draft_tensors(self) -> Iterator[LogicalTensor]:
        """The same of the draft that the manifest names, under the names that they have here."""
        return self._logical(of_draft=True)

    def weights_summary(self) -> str:
        """How many of the target's weights are stored as what: "int4 210, f32 61, int8 1".

        Reads the headers of all tensor blobs. StoreError if one is missing or damaged.
        """
        return weights_summary(self.target_tensors())

    def draft_summary(self) -> str:
        """The same of the draft's."""
        return weights_summary(self.draft_tensors())

    def _logical(self, *, of_draft: bool) -> Iterator[LogicalTensor]:
        draft = None if self.draft is None else self.draft.tensor_prefix
        for layer in self.tensors:
            if (draft is not None and layer.name.startswith(draft)) is of_draft:
                yield from logical_tensors(read_header(self.file(layer), StoreError))

    def _text(self, media_type: str) -> str | None:
        layers = self.manifest.of_type(media_type)
        return self._decoded(layers[0]) if layers else None

    def _decoded(self, layer: Layer) -> str:
        try:
            return self.read(layer).decode()
        except UnicodeDecodeError as reason:
            raise StoreError(
                f"{self.name}: blob {layer.blob.digest} is not UTF-8 text: {reason.reason}"
            ) from None


def draft_architecture(config: JsonObject, where: str) -> str:
    """What a draft's config.json says the draft is (CFG-4). RequestError if it does not."""
    listed = config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    for stated in (first, config.get("model_type")):
        if isinstance(stated, str) and stated:
            return stated
    raise RequestError(f"{where} names no architecture; it needs `architectures` or `model_type`")
