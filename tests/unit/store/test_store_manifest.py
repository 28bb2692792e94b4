"""Manifests and config blobs (07 CFG-2): what is written is read back, what is wrong is named."""

import json

import pytest

from forerun.base.errors import StoreError
from forerun.store.blobs import Blob, Digest
from forerun.store.manifest import (
    JSON,
    LICENSE,
    SYSTEM,
    TENSOR,
    DraftConfig,
    Layer,
    Manifest,
    ModelConfig,
    Origin,
)

A, B = Blob(Digest.of(b"a"), 1), Blob(Digest.of(b"bb"), 2)


def test_a_manifest_looks_like_ollamas() -> None:
    """CFG-2: schema version, media types, digests, sizes and names."""
    document = json.loads(Manifest(A, (Layer(TENSOR, B, "w"), Layer(SYSTEM, A))).encode())
    assert document["schemaVersion"] == 2
    assert document["config"]["digest"] == str(A.digest)
    assert document["layers"] == [
        {
            "mediaType": "application/vnd.ollama.image.tensor",
            "digest": str(B.digest),
            "size": 2,
            "name": "w",
        },
        {"mediaType": "application/vnd.ollama.image.system", "digest": str(A.digest), "size": 1},
    ]


def test_a_manifest_is_read_back_as_it_was() -> None:
    """CFG-2."""
    manifest = Manifest(A, (Layer(TENSOR, B, "w"), Layer(JSON, A, "config.json")))
    assert Manifest.decode(manifest.encode(), "m") == manifest
    assert manifest.blobs == (A, B)
    assert manifest.size == 3


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schemaVersion",), 1, "m: schemaVersion is 1, not 2"),
        (("schemaVersion",), True, "m: schemaVersion is True"),
        (("config",), None, "m: config is None, not an object"),
        (("config", "digest"), "sha256:../x", "m: config: digest is 'sha256:../x'"),
        (("layers",), {}, "m: layers is {}, not a list of objects"),
        (("layers", 0), 3, "m: layers is "),
        (("layers", 0, "digest"), "md5:1", r"m: layers\[0\]: digest is 'md5:1'"),
        (("layers", 0, "size"), -1, r"m: layers\[0\]: size is -1"),
        (("layers", 0, "size"), True, r"m: layers\[0\]: size is True"),
        (("layers", 0, "size"), 1.5, r"m: layers\[0\]: size is 1.5"),
        (("layers", 0, "name"), 7, r"m: layers\[0\]: name is 7, not a string"),
        (("layers", 0, "mediaType"), None, r"m: layers\[0\]: mediaType is None"),
    ],
)
def test_a_damaged_manifest_names_the_field(
    path: tuple[str | int, ...], value: object, message: str
) -> None:
    """CFG-2."""
    document = json.loads(Manifest(A, (Layer(TENSOR, B, "w"),)).encode())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(StoreError, match=message):
        Manifest.decode(json.dumps(document).encode(), "m")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(StoreError, match="m: schemaVersion is missing"):
        Manifest.decode(b"{}", "m")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe\xff", b"[" * 100_000, b'"x"'])
def test_what_is_no_json_object_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(StoreError, match="m is not"):
        Manifest.decode(data, "m")


@pytest.mark.parametrize(
    "layers",
    [(Layer(TENSOR, A, "w"), Layer(TENSOR, B, "w")), (Layer(SYSTEM, A), Layer(SYSTEM, B))],
)
def test_two_layers_for_one_thing_are_an_error(layers: tuple[Layer, ...]) -> None:
    with pytest.raises(StoreError, match="twice"):
        Manifest.decode(Manifest(A, layers).encode(), "m")


def test_a_tensor_and_a_file_may_share_a_name_and_licences_may_be_many() -> None:
    layers = (Layer(TENSOR, A, "w"), Layer(JSON, B, "w"), Layer(LICENSE, A), Layer(LICENSE, B))
    assert Manifest.decode(Manifest(A, layers).encode(), "m").of_type(LICENSE) == layers[2:]


def test_a_config_is_read_back_as_it_was() -> None:
    """CFG-2, and the commit that CAT-1 wants recorded."""
    full = ModelConfig(
        file_type="int4",
        capabilities=("completion", "tools"),
        requires="0.19.0",
        parser="qwen3",
        renderer="qwen3",
        draft=DraftConfig("LlamaForCausalLMEagle3"),
        origin=Origin("hf.co/o/n", "0" * 40),
    )
    for config in (full, ModelConfig()):
        assert ModelConfig.decode(config.encode(), "c") == config
    assert json.loads(full.encode())["draft"] == {
        "model_format": "safetensors",
        "architecture": "LlamaForCausalLMEagle3",
        "tensor_prefix": "draft.",
        "config": "draft/config.json",
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{}", "c: model_format is missing"),
        (b'{"model_format":"safetensors","capabilities":[1]}', "c: capabilities is"),
        (b'{"model_format":"safetensors","capabilities":"tools"}', "c: capabilities is 'tools'"),
        (b'{"model_format":"safetensors","parser":4}', "c: parser is 4"),
        (b'{"model_format":"safetensors","draft":{}}', "c: draft: architecture is missing"),
    ],
)
def test_a_damaged_config_names_the_field(data: bytes, message: str) -> None:
    """CFG-2."""
    with pytest.raises(StoreError, match=message):
        ModelConfig.decode(data, "c")


def test_a_config_of_a_later_version_is_still_read() -> None:
    data = b'{"model_format":"safetensors","later":true}'
    assert ModelConfig.decode(data, "c") == ModelConfig()
