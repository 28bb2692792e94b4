"""What a stored model is, in figures: size, shape and weights, from headers and config alone."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from forerun.base.json_types import JsonObject
from forerun.store.blobs import Digest
from forerun.store.inventory import CONFIG
from forerun.store.stored import StoredModel
from forerun.store.tensors import prevailing_kind

_REMEMBERED: Final = 256  # models
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class Description:
    """The target of a model. A size is None where its config does not say."""

    model_format: str
    architecture: str  # the config's model_type, "" if it has none
    parameters: int  # logical: a packed weight counts as what it stands for
    quantisation: str  # the type that most weights of its layers have
    context_length: int | None
    embedding_length: int | None
    block_count: int | None
    feed_forward_length: int | None
    head_count: int | None
    head_count_kv: int | None
    head_length: int | None
    vocab_size: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def describe(model: StoredModel) -> Description:
    """Read once for each digest, then remembered: a model has hundreds of headers.

    StoreError if a blob is missing or damaged, LoadError if there is no config.json.
    """
    return _describe(_Known(model.digest, model))


@dataclass(frozen=True, slots=True)
class _Known:
    """Equal to another one of the same digest, wherever it lies and whatever it is called."""

    digest: Digest
    model: StoredModel = field(compare=False)


@lru_cache(maxsize=_REMEMBERED)
def _describe(known: _Known) -> Description:
    model = known.model
    config = model.json(CONFIG)
    fields = {**config, **_inner(config)}
    tensors = list(model.target_tensors())
    heads = _whole(fields, "num_attention_heads")
    return Description(
        model_format=model.config.model_format,
        architecture=_text(config, "model_type"),
        parameters=sum(tensor.elements for tensor in tensors),
        quantisation=prevailing_kind(tensors),
        context_length=_whole(fields, "max_position_embeddings"),
        embedding_length=_whole(fields, "hidden_size"),
        block_count=_whole(fields, "num_hidden_layers"),
        feed_forward_length=_whole(fields, "intermediate_size"),
        head_count=heads,
        head_count_kv=_whole(fields, "num_key_value_heads") or heads,
        head_length=_whole(fields, "head_dim"),
        vocab_size=_whole(fields, "vocab_size"),
        bos_token_id=_whole(fields, "bos_token_id"),
        eos_token_ids=tuple(_ids(fields)),
    )


def chat_template(model: StoredModel) -> str | None:
    """The template that a chat is rendered with: the model's own, else its tokenizer's default."""
    if model.template is not None and model.template.strip():
        return model.template
    if model.json_layer(_TOKENIZER_CONFIG) is None:
        return None
    stated = model.json(_TOKENIZER_CONFIG).get("chat_template")
    for entry in stated if isinstance(stated, list) else []:
        if isinstance(entry, dict) and entry.get("name") == "default":
            stated = entry.get("template")
    return stated if isinstance(stated, str) else None


def tokenizer_kind(model: StoredModel) -> str | None:
    """What tokenizer.json calls its algorithm, such as BPE. Remembered as `describe` is."""
    return _tokenizer_kind(_Known(model.digest, model))


@lru_cache(maxsize=_REMEMBERED)
def _tokenizer_kind(known: _Known) -> str | None:
    if known.model.json_layer(_TOKENIZER) is None:
        return None
    algorithm = known.model.json(_TOKENIZER).get("model")
    return _text(algorithm, "type") or None if isinstance(algorithm, dict) else None


def _inner(config: JsonObject) -> JsonObject:
    """The language model's own part of a config that has several."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else {}


def _text(fields: JsonObject, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _whole(fields: JsonObject, name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _ids(fields: JsonObject) -> Iterator[int]:
    stated = fields.get("eos_token_id")
    for value in stated if isinstance(stated, list) else [stated]:
        if isinstance(value, int) and not isinstance(value, bool):
            yield value
