"""A GGUF file as the checkpoint that it was made from: configuration files and tensor plans."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import ImportFailedError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.importer.gguf_reader.config import Facts, build_config, heads_of
from forerun.importer.gguf_reader.file import GgufFile, GgufTensor
from forerun.importer.gguf_reader.metadata import Metadata
from forerun.importer.gguf_reader.names import (
    ROPE_FREQUENCIES,
    Family,
    family_of,
    required_names,
)
from forerun.importer.gguf_reader.tensors import plan_tensors, tensor_file
from forerun.importer.gguf_reader.tokenizer import (
    adds_bos,
    adds_eos,
    build_tokenizer,
    special_id,
)
from forerun.importer.plan import BlobPlan, in_order
from forerun.importer.policy.choose import chooser
from forerun.importer.write import TensorFile
from forerun.store.manifest import encode_json

ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
UNPOOLED = 0
POOLING = {1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
ENDS = ("eos", "eot")  # tokens that end an answer


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    config: JsonObject
    files: dict[str, bytes]  # configuration files by name
    blobs: tuple[BlobPlan, ...]
    surplus: tuple[str, ...]
    file: GgufFile
    tensors: dict[str, GgufTensor]

    def open(self, blob: BlobPlan) -> TensorFile:
        """What to write for a blob; its chunks are read as they are asked for."""
        (plan,) = blob.tensors
        return tensor_file(self.file, self.tensors[plan.source], blob)


def read_checkpoint(file: GgufFile, quantize: str = "") -> GgufCheckpoint:
    """quantize: the type that weights get by policy, "" for what they come as.

    Raises ImportFailedError naming the key, tensor, type or tokenizer that cannot be used."""
    metadata = file.metadata
    if metadata.whole_or("split.count", 1) > 1:
        raise ImportFailedError(
            f"{file.path} is one of several parts; merge them with llama.cpp's gguf-split first"
        )
    architecture = metadata.text("general.architecture")
    family = family_of(architecture)
    tensors = {tensor.name: tensor for tensor in file.tensors}
    _require(file, family, tensors, metadata.whole(f"{architecture}.block_count"))
    config = build_config(metadata, family, _facts(file, tensors)) | _special_ids(metadata)
    choose = chooser(config, quantize, tied="output.weight" not in tensors)
    planned = plan_tensors(file, family, heads_of(metadata), choose)
    return GgufCheckpoint(
        config=config,
        files={
            "config.json": encode_json(config),
            "generation_config.json": encode_json(_special_ids(metadata)),
            "tokenizer.json": build_tokenizer(metadata),
            "tokenizer_config.json": encode_json(_tokenizer_config(metadata)),
            **_pooling(metadata, architecture),
        },
        blobs=in_order(planned.plans),
        surplus=tuple(sorted(planned.surplus)),
        file=file,
        tensors=tensors,
    )


def _require(file: GgufFile, family: Family, tensors: dict[str, GgufTensor], layers: int) -> None:
    for name in required_names(family, layers):
        if name not in tensors:
            raise ImportFailedError(
                f"{file.path} has no tensor {name}; the file is incomplete, fetch another"
            )


def _facts(file: GgufFile, tensors: dict[str, GgufTensor]) -> Facts:
    return Facts(
        vocabulary=tensors["token_embd.weight"].shape[0],
        tied="output.weight" not in tensors,
        biased="blk.0.attn_q.bias" in tensors,
        rope_factors=_rope_factors(file, tensors.get(ROPE_FREQUENCIES)),
    )


def _rope_factors(file: GgufFile, tensor: GgufTensor | None) -> NDArray[np.float32] | None:
    if tensor is None:
        return None
    if tensor.type.name != "F32":
        raise ImportFailedError(f"tensor {tensor.name} is of type {tensor.type.name}, not F32")
    return np.concatenate([rows.reshape(-1) for rows in file.read_rows(tensor, 1)]).view("<f4")


def _special_ids(metadata: Metadata) -> JsonObject:
    """EOS is a list where the file names an end of turn of its own (TOK-4)."""
    ids: JsonObject = {}
    bos, pad = special_id(metadata, "bos"), special_id(metadata, "padding")
    if bos is not None:
        ids["bos_token_id"] = bos
    ends = [i for i in (special_id(metadata, role) for role in ENDS) if i is not None]
    if ends:
        distinct: list[JsonValue] = list(dict.fromkeys(ends))
        ids["eos_token_id"] = distinct if len(distinct) > 1 else distinct[0]
    if pad is not None:
        ids["pad_token_id"] = pad
    return ids


def _pooling(metadata: Metadata, architecture: str) -> dict[str, bytes]:
    """How embeddings are pooled, where the file says so, as checkpoints say it (08 API-13)."""
    stated = metadata.whole_or(f"{architecture}.pooling_type", UNPOOLED)
    if stated == UNPOOLED:
        return {}
    mode = POOLING.get(stated, f"type {stated} of {metadata.file}")  # refused when it is loaded
    return {"1_Pooling/config.json": encode_json({"pooling_mode": mode})}


def _tokenizer_config(metadata: Metadata) -> JsonObject:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    document: JsonObject = {
        "add_bos_token": adds_bos(metadata),
        "add_eos_token": adds_eos(metadata),
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for role, key in ROLES.items():
        index = special_id(metadata, key)
        if index is None:
            continue
        if not 0 <= index < len(tokens):
            raise ImportFailedError(
                f"{metadata.file}: tokenizer.ggml.{key}_token_id is {index}, and there are "
                f"{len(tokens)} tokens"
            )
        document[f"{role}_token"] = tokens[index]
    template = _chat_template(metadata)
    if template is not None:
        document["chat_template"] = template
    return document


def _chat_template(metadata: Metadata) -> JsonValue:
    """One template, or a list of named ones as tokenizer_config.json writes them (TMP-5)."""
    main = metadata.text_or("tokenizer.chat_template", None)
    if not metadata.has("tokenizer.chat_templates"):
        return main
    named: list[JsonValue] = [
        {"name": name, "template": metadata.text(f"tokenizer.chat_template.{name}")}
        for name in metadata.texts("tokenizer.chat_templates")
        if name != "default"
    ]
    return named if main is None else [{"name": "default", "template": main}, *named]
