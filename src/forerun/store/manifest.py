"""What a stored model consists of: a config blob and layers (spec 07 CFG-2).

A manifest names blobs by digest; it is the only mutable thing in the store, and small.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.store.blobs import Blob, Digest
from forerun.store.fields import Fields

SCHEMA_VERSION: Final = 2
MANIFEST_TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG: Final = "application/vnd.docker.container.image.v1+json"
TENSOR: Final = "application/vnd.ollama.image.tensor"
JSON: Final = "application/vnd.ollama.image.json"
TEMPLATE: Final = "application/vnd.ollama.image.template"
SYSTEM: Final = "application/vnd.ollama.image.system"
LICENSE: Final = "application/vnd.ollama.image.license"
PARAMS: Final = "application/vnd.ollama.image.params"
MESSAGES: Final = "application/vnd.ollama.image.messages"

SAFETENSORS: Final = "safetensors"
# Layers of one of these types are told apart by their names; the others have none.
_NAMED = {TENSOR, JSON}
_SINGLE = {TEMPLATE, SYSTEM, PARAMS, MESSAGES}


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of a model. `name` is a tensor's name or a JSON file's path, else ""."""

    media_type: str
    blob: Blob
    name: str = ""


DRAFT_PREFIX, DRAFT_FOLDER = "draft.", "draft/"  # of its tensors and files (CFG-1)


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """The draft model inside a model: which layers are its own, and what it is."""

    architecture: str
    model_format: str = SAFETENSORS
    tensor_prefix: str = DRAFT_PREFIX
    config: str = f"{DRAFT_FOLDER}config.json"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model came from, exactly: a repository and its commit, or a wheel and its digest."""

    source: str
    version: str


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The config blob. Empty strings mean that nothing is said."""

    model_format: str = SAFETENSORS
    file_type: str = ""  # for other readers of the blob (CFG-2, CLS-5); ours use `describe`
    capabilities: tuple[str, ...] = ()
    requires: str = ""
    parser: str = ""
    renderer: str = ""
    draft: DraftConfig | None = None
    origin: Origin | None = None

    def encode(self) -> bytes:
        """The config blob's bytes, the same for equal configs."""
        document: JsonObject = {
            "model_format": self.model_format,
            "file_type": self.file_type,
            "capabilities": list(self.capabilities),
            "requires": self.requires,
            "parser": self.parser,
            "renderer": self.renderer,
        }
        if self.draft is not None:
            document["draft"] = {
                "model_format": self.draft.model_format,
                "architecture": self.draft.architecture,
                "tensor_prefix": self.draft.tensor_prefix,
                "config": self.draft.config,
            }
        if self.origin is not None:
            document["origin"] = {"source": self.origin.source, "version": self.origin.version}
        return encode_json(document)

    @classmethod
    def decode(cls, data: bytes, where: str) -> "ModelConfig":
        """The config in `data`; unknown fields are left to the versions that know them."""
        fields = Fields.parse(data, where)
        return cls(
            model_format=fields.text("model_format"),
            file_type=fields.optional_text("file_type"),
            capabilities=fields.texts("capabilities"),
            requires=fields.optional_text("requires"),
            parser=fields.optional_text("parser"),
            renderer=fields.optional_text("renderer"),
            draft=_draft(fields),
            origin=_origin(fields),
        )


def _draft(config: Fields) -> DraftConfig | None:
    if config.values.get("draft") is None:
        return None
    fields = config.fields("draft")
    return DraftConfig(
        architecture=fields.text("architecture"),
        model_format=fields.text("model_format"),
        tensor_prefix=fields.text("tensor_prefix"),
        config=fields.text("config"),
    )


def _origin(config: Fields) -> Origin | None:
    if config.values.get("origin") is None:
        return None
    fields = config.fields("origin")
    return Origin(fields.text("source"), fields.text("version"))


@dataclass(frozen=True, slots=True)
class Manifest:
    """A config blob and layers, in the order in which they were written."""

    config: Blob
    layers: tuple[Layer, ...]

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Every blob once, however often it is named."""
        return tuple(dict.fromkeys((self.config, *(layer.blob for layer in self.layers))))

    @property
    def size(self) -> int:
        """Bytes on disk, a shared blob counted once."""
        return sum(blob.size for blob in self.blobs)

    def of_type(self, media_type: str) -> tuple[Layer, ...]:
        """The layers of one type, in order."""
        return tuple(layer for layer in self.layers if layer.media_type == media_type)

    def encode(self) -> bytes:
        """The manifest's bytes; their digest is the model's identity."""
        return encode_json(
            {
                "schemaVersion": SCHEMA_VERSION,
                "mediaType": MANIFEST_TYPE,
                "config": _encoded(Layer(CONFIG, self.config)),
                "layers": [_encoded(layer) for layer in self.layers],
            }
        )

    @classmethod
    def decode(cls, data: bytes, where: str) -> "Manifest":
        """The manifest in `data`. Raises StoreError naming `where` and the field."""
        fields = Fields.parse(data, where)
        version = fields.count("schemaVersion")
        if version != SCHEMA_VERSION:
            raise fields.wrong("schemaVersion", str(SCHEMA_VERSION))
        config = _decoded(fields.fields("config"))
        layers = tuple(_decoded(layer) for layer in fields.list_of_fields("layers"))
        _refuse_repeats(fields, layers)
        return cls(config.blob, layers)


def encode_json(document: Mapping[str, JsonValue] | list[JsonValue]) -> bytes:
    """`document` as the store writes it: UTF-8, no spaces, keys in the order given."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _encoded(layer: Layer) -> JsonObject:
    document: JsonObject = {
        "mediaType": layer.media_type,
        "digest": str(layer.blob.digest),
        "size": layer.blob.size,
    }
    if layer.name:
        document["name"] = layer.name
    return document


def _decoded(fields: Fields) -> Layer:
    text = fields.text("digest")
    try:
        digest = Digest.parse(text)
    except RequestError:
        raise fields.wrong("digest", "sha256:<64 hex digits>") from None
    blob = Blob(digest, fields.count("size"))
    return Layer(fields.text("mediaType"), blob, fields.optional_text("name"))


def _refuse_repeats(fields: Fields, layers: tuple[Layer, ...]) -> None:
    seen: set[tuple[str, str]] = set()
    for layer in layers:
        if layer.media_type in _NAMED:
            key = (layer.media_type, layer.name)
        elif layer.media_type in _SINGLE:
            key = (layer.media_type, "")
        else:
            continue
        if key in seen:
            what = f"{layer.media_type} {layer.name}".strip()
            raise fields.error(f"{fields.where}: layers name {what} twice")
        seen.add(key)
