"""The store as a whole: put, list, open, copy, remove, verify (07 CFG, CAT-5, CAT-6)."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from forerun.base.errors import LoadError, NotFoundError, RequestError, StoreError
from forerun.store.manifest import (
    JSON,
    LICENSE,
    MESSAGES,
    PARAMS,
    SYSTEM,
    TEMPLATE,
    TENSOR,
    DraftConfig,
    Layer,
    Manifest,
    ModelConfig,
)
from forerun.store.messages import Message, encode_messages
from forerun.store.names import ModelName
from forerun.store.parameters import encode_parameters
from forerun.store.store import Store

Put = Callable[..., Manifest]

NAME = ModelName.parse("a:1")
OTHER = ModelName.parse("b:2")


def _files(store: Store) -> set[str]:
    return {file.name for file in store.folders.blobs.iterdir()}


def _named(manifest: Manifest) -> set[str]:
    return {blob.digest.file_name for blob in manifest.blobs}


def test_a_store_that_does_not_exist_is_empty(store: Store) -> None:
    assert store.entries() == []
    assert not store.exists(NAME)
    assert list(store.blobs) == []
    assert store.collect() == 0


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_store_that_is_a_file_is_named(tmp_path: Path, inside: str) -> None:
    """CFG-3: it is not taken for an empty store."""
    (tmp_path / "file").write_bytes(b"x")
    root = tmp_path / "file" / inside
    with pytest.raises(StoreError, match=rf"^[^\n]*{re.escape(str(root))}[^\n]*FORERUN_MODELS"):
        Store(root)


def test_a_folder_of_the_store_that_cannot_be_read_is_named(store: Store, put: Put) -> None:
    """What is in it is not said to be missing."""
    put("a:1", b"w")
    os.rename(store.folders.manifests, store.folders.root / "moved")
    store.folders.manifests.write_bytes(b"")
    with pytest.raises(StoreError, match=r"cannot read .*manifests.*FORERUN_MODELS"):
        store.entries()


def test_files_lie_where_the_rule_says(store: Store, put: Put) -> None:
    """CFG-3: manifests by host, namespace, name and tag; blobs by digest."""
    put("hf.co/o/n:v1", b"w")
    root = store.folders.root
    assert (root / "manifests" / "hf.co" / "o" / "n" / "v1").is_file()
    assert all(name.startswith("sha256-") for name in _files(store))


def test_a_model_is_opened_with_all_that_the_runner_asks_for(store: Store, put: Put) -> None:
    """CFG-5: the config layer by path, its content, all tensor layers; MF-3 and MF-2 parts."""
    manifest = put(
        "a:1",
        b"first",
        b"second",
        config=ModelConfig(file_type="int4", capabilities=("completion",)),
        extra={
            TEMPLATE: "{{ messages }} ü".encode(),
            SYSTEM: b"be brief",
            LICENSE: b"Apache",
            PARAMS: encode_parameters({"temperature": 0.2, "stop": ["x"], "logit_bias": {5: 1.5}}),
            MESSAGES: encode_messages((Message("user", "hi"), Message("assistant", "ho"))),
        },
    )
    model = store.get(NAME)
    assert model.manifest == manifest
    assert model.config.file_type == "int4"
    assert [layer.name for layer in model.tensors] == ["tensor.0", "tensor.1"]
    assert model.file(model.tensors[1]).read_bytes() == b"second"
    assert model.json("config.json") == {"model_type": "llama"}
    assert model.json_layer("tokenizer.json") is None
    assert model.template == "{{ messages }} ü"
    assert model.system == "be brief"
    assert model.licenses == ("Apache",)
    assert model.parameters == {"temperature": 0.2, "stop": ["x"], "logit_bias": {5: 1.5}}
    assert model.messages == (Message("user", "hi"), Message("assistant", "ho"))
    assert model.draft is None


def test_what_a_model_lacks_is_none_or_named(store: Store, put: Put) -> None:
    """CFG-5."""
    put("a:1")
    model = store.get(NAME)
    assert (model.template, model.system, model.licenses, model.messages) == (None, None, (), ())
    assert model.parameters == {}
    with pytest.raises(LoadError, match=r"'a:1' has no tokenizer\.json"):
        model.json("tokenizer.json")


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (PARAMS, b'{"temprature":1}', "parameters of a:1: unknown option 'temprature'"),
        (PARAMS, b'{"top_p":3}', "parameters of a:1: option top_p is 3"),
        (MESSAGES, b"{}", "messages of a:1 is not a list"),
        (MESSAGES, b'[{"role":"tool","content":""}]', r"messages\[0\]: role is 'tool'"),
        (SYSTEM, b"\xff", "a:1: blob .* is not UTF-8"),
    ],
)
def test_a_damaged_layer_is_named(
    store: Store, put: Put, kind: str, data: bytes, message: str
) -> None:
    put("a:1", extra={kind: data})
    model = store.get(NAME)
    with pytest.raises(StoreError, match=message):
        _ = (model.parameters, model.messages, model.system)


def test_a_draft_is_what_the_config_says(store: Store, put: Put) -> None:
    """CFG-2."""
    put("a:1", config=ModelConfig(draft=DraftConfig("Eagle3", tensor_prefix="head.")))
    assert store.get(NAME).draft == DraftConfig("Eagle3", tensor_prefix="head.")


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        (b'{"architectures":["Foo","Bar"],"model_type":"x"}', "Foo"),
        (b'{"architectures":[],"model_type":"gemma4_assistant"}', "gemma4_assistant"),
    ],
)
def test_an_old_manifest_with_a_draft_config_has_a_draft(
    store: Store, config: bytes, architecture: str
) -> None:
    """CFG-5, CFG-4: the draft's architecture comes from its own config."""
    with store.importing() as writer:
        layer = writer.add_layer(JSON, config, "draft/config.json")
        writer.publish(NAME, ModelConfig(), [layer])
    assert store.get(NAME).draft == DraftConfig(architecture)


def test_a_draft_without_an_architecture_is_an_error(store: Store) -> None:
    """CFG-4."""
    with store.importing() as writer:
        layer = writer.add_layer(JSON, b'{"architectures":[""]}', "draft/config.json")
        writer.publish(NAME, ModelConfig(), [layer])
    with pytest.raises(RequestError, match=r"draft/config\.json names no architecture"):
        _ = store.get(NAME).draft


def test_the_list_has_sizes_times_and_damage(store: Store, put: Put) -> None:
    """A damaged manifest stands in the list, so that its owner can remove it."""
    manifest = put("a:1", b"12345")
    put("b:2")
    os.utime(NAME.path(store.folders.manifests), (2_000_000_000, 2_000_000_000))
    OTHER.path(store.folders.manifests).write_bytes(b"{}")
    first, second = store.entries()
    assert (first.name, first.size, first.damage) == (NAME, manifest.size, "")
    assert first.modified_at == 2_000_000_000
    assert first.digest == store.get(NAME).digest
    assert (second.name, second.size) == (OTHER, 0)
    assert "schemaVersion is missing" in second.damage


def test_strangers_in_the_folder_are_not_models(store: Store, put: Put) -> None:
    put("a:1")
    for stray in ("forerun/library/a/.tmp-1", "forerun/.DS_Store", "x.y/a/b/c", "d"):
        path = store.folders.manifests / stray
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    assert [entry.name for entry in store.entries()] == [NAME]


def test_a_manifest_that_cannot_be_read_is_named(store: Store, put: Put) -> None:
    put("a:1")
    path = NAME.path(store.folders.manifests)
    path.unlink()
    path.symlink_to(path)
    for use in (store.entries, lambda: store.get(NAME), lambda: store.modified_at(NAME)):
        with pytest.raises(StoreError, match=f"cannot read {path}.*FORERUN_MODELS"):
            use()


def test_an_unknown_model_says_what_to_do(store: Store) -> None:
    for use in (store.get, store.delete, store.damaged):
        with pytest.raises(NotFoundError, match=r"model 'a:1' not found.*forerun pull"):
            use(NAME)
    with pytest.raises(NotFoundError):
        store.copy(NAME, OTHER)


def test_a_damaged_manifest_says_what_to_do_and_can_be_removed(store: Store, put: Put) -> None:
    put("a:1", b"x")
    NAME.path(store.folders.manifests).write_bytes(b'{"schemaVersion":2')
    with pytest.raises(StoreError, match=r"manifest of a:1 is not valid JSON.*pull or create"):
        store.get(NAME)
    store.delete(NAME)
    assert store.entries() == []
    assert _files(store) == set()


def test_a_copy_shares_every_blob_and_outlives_the_original(store: Store, put: Put) -> None:
    """08 API-4."""
    manifest = put("a:1", b"w")
    store.copy(NAME, OTHER)
    assert store.get(OTHER).digest == store.get(NAME).digest
    store.delete(NAME)
    assert store.get(OTHER).manifest == manifest
    assert store.damaged(OTHER) == ()


def test_a_copy_is_not_given_a_repositorys_name(store: Store, put: Put) -> None:
    put("a:1")
    with pytest.raises(RequestError, match="stands for a repository"):
        store.copy(NAME, ModelName.parse("hf.co/o/n"))


def test_removing_a_model_removes_what_only_it_named(store: Store, put: Put) -> None:
    """CAT-6: shared blobs survive, and so do no empty folders."""
    put("a:1", b"shared", b"own")
    kept = put("me/b:2", b"shared")
    store.delete(NAME)
    assert _files(store) == _named(kept)
    assert not NAME.path(store.folders.manifests).parent.exists()
    store.delete(ModelName.parse("me/b:2"))
    assert _files(store) == set()
    assert list(store.folders.manifests.iterdir()) == []


def test_a_model_written_anew_replaces_the_old_one_whole(store: Store, put: Put) -> None:
    """CFG-6, CAT-6."""
    put("a:1", b"old", b"both")
    manifest = put("a:1", b"both", b"new")
    assert store.get(NAME).manifest == manifest
    assert _files(store) == _named(manifest)


def test_a_failed_import_leaves_no_manifest_and_keeps_the_old_one(store: Store, put: Put) -> None:
    """CFG-6."""
    old = put("a:1", b"old")
    with pytest.raises(ZeroDivisionError), store.importing() as writer:
        writer.add_bytes(b"half of the new one")
        raise ZeroDivisionError
    assert store.get(NAME).manifest == old
    store.collect()
    assert _files(store) == _named(old)
    assert list(store.folders.holds.iterdir()) == []


def test_a_manifest_is_not_published_over_a_blob_that_is_missing_or_short(store: Store) -> None:
    """CFG-6."""
    with store.importing() as writer:
        blob = writer.add_bytes(b"weights")
        path = store.blobs.path(blob.digest)
        os.truncate(path, 2)
        with pytest.raises(StoreError, match="has 2 bytes instead of 7"):
            writer.publish(NAME, ModelConfig(), [Layer(TENSOR, blob, "w")])
        path.unlink()
        with pytest.raises(StoreError, match="is missing"):
            writer.publish(NAME, ModelConfig(), [Layer(TENSOR, blob, "w")])
    assert not store.exists(NAME)


def test_verifying_finds_exactly_what_is_wrong(store: Store, put: Put) -> None:
    """CAT-5: a pull of what is there verifies digests and knows what is missing."""
    manifest = put("a:1", b"fine", b"changed", b"gone")
    heard: list[tuple[int, int]] = []
    assert store.damaged(NAME, lambda done, total: heard.append((done, total))) == ()
    assert heard[-1] == (manifest.size, manifest.size)
    changed, gone = (layer.blob for layer in manifest.of_type(TENSOR)[1:])
    store.blobs.path(changed.digest).write_bytes(b"chanked")
    store.blobs.path(gone.digest).unlink()
    assert set(store.damaged(NAME)) == {changed, gone}


def test_what_a_running_import_wrote_or_keeps_is_not_collected(store: Store, put: Put) -> None:
    """CAT-6: by a removal, nor by a collection, though no manifest names it."""
    manifest = put("a:1", b"shared")
    shared = manifest.of_type(TENSOR)[0].blob
    with store.importing() as writer:
        written = writer.add_bytes(b"new")
        writer.keep([shared])
        with writer.blob() as file:
            file.write(b"being written")
            store.delete(NAME)
            Store(store.folders.root).collect()
        assert _files(store) >= {b.digest.file_name for b in (written, shared, file.blob)}
        layers = [Layer(TENSOR, b, b.digest.hex) for b in (written, shared, file.blob)]
        writer.publish(OTHER, ModelConfig(), layers)
    assert store.damaged(OTHER) == ()
    store.collect()
    assert _files(store) == _named(store.get(OTHER).manifest)


def test_a_blob_that_is_gone_cannot_be_kept(store: Store, put: Put) -> None:
    """CAT-6."""
    shared = put("a:1", b"w").of_type(TENSOR)[0].blob
    store.delete(NAME)
    with store.importing() as writer, pytest.raises(StoreError, match="is missing"):
        writer.keep([shared])


def test_a_download_goes_once_it_is_imported(store: Store) -> None:
    """CAT-5: what is unfinished stays for the next try."""
    for key in ("imported", "unfinished"):
        with store.downloads.folder(key) as folder:
            (folder / "part").write_bytes(b"123")
    store.downloads.discard("imported")
    assert not (store.folders.downloads / "imported").exists()
    assert (store.folders.downloads / "unfinished" / "part").exists()


def _blob(tensors: dict[str, str], quant_type: str = "") -> bytes:
    """A safetensors file of tensors of one value each, with these types."""
    dtypes = {
        "U32": np.uint32,
        "F16": np.float16,
        "F32": np.float32,
        "I64": np.int64,
        "BOOL": np.bool_,
    }
    values = {name: np.zeros(1, dtypes[kind]) for name, kind in tensors.items()}
    return save(values, {"quant_type": quant_type} if quant_type else None)


def test_what_weights_are_is_told_from_their_headers(store: Store) -> None:
    """PLN-5, CLS-5: scales and zero points count with their tensor, the draft's do not count,
    and maps of ids, which are no weights, nowhere."""
    packed = {"q.weight": "U32", "q.weight.scale": "F16", "q.weight.bias": "F16"}
    layers = {
        "a.q.weight": _blob(packed, "int4"),
        "b.q.weight": _blob({"b.q.weight": "U32", "b.q.weight.scale": "F16"}, "int4"),
        "embed.weight": _blob({"embed.weight": "U32", "embed.weight.scale": "F32"}, "int8"),
        "norm.weight": _blob({"norm.weight": "F32"}),
        "q.bias": _blob({"q.bias": "F32", "q.other": "F32"}),
        "draft.fc.weight": _blob({"draft.fc.weight": "F16"}),
        "draft.d2t": _blob({"draft.d2t": "I64"}),
        "draft.t2d": _blob({"draft.t2d": "BOOL"}),
        "ids": _blob({"ids": "I64"}),
    }
    with store.importing() as writer:
        written = [writer.add_layer(TENSOR, data, name) for name, data in layers.items()]
        writer.publish(NAME, ModelConfig(draft=DraftConfig("Head")), written)
    model = store.get(NAME)
    assert model.weights_summary() == "f32 3, int4 2, int8 1"
    assert model.draft_summary() == "f16 1"
    store.blobs.path(written[0].blob.digest).unlink()
    with pytest.raises(StoreError, match="is missing"):
        model.weights_summary()
