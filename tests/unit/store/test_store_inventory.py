"""Inventories of model folders (07 INV, T6, T7): headers only, and every fault by name."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from forerun.base.errors import RequestError
from forerun.store.headers import read_header
from forerun.store.inventory import INDEX, read_inventory

Tensors = Mapping[str, object]


def _entry(start: int, end: int, dtype: str = "U8", shape: object = None) -> dict[str, object]:
    return {
        "dtype": dtype,
        "shape": [end - start] if shape is None else shape,
        "data_offsets": [start, end],
    }


def _write(path: Path, header: Mapping[str, object], data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _folder(path: Path, files: Mapping[str, list[str]], index: Tensors | None = None) -> Path:
    """A model folder whose files hold one-byte tensors of these names."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text('{"architectures":["Foo"]}')
    for name, tensors in files.items():
        header = {tensor: _entry(at, at + 1) for at, tensor in enumerate(tensors)}
        _write(path / name, header, bytes(len(tensors)))
    if index is not None:
        (path / INDEX).write_text(json.dumps({"weight_map": index}))
    return path


def test_a_header_says_what_the_formats_own_library_wrote(tmp_path: Path) -> None:
    """INV-1: names, types, shapes and where the bytes lie."""
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros((0, 4), np.int64),
        "c": np.full((), 2.5, np.float16),
        "d": np.array([True, False]),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "pt"})
    header = read_header(path)
    content = path.read_bytes()
    assert header.metadata == {"format": "pt"}
    found = {tensor.name: tensor for tensor in header.tensors}
    assert {n: (t.dtype, t.shape) for n, t in found.items()} == {
        "a": ("F32", (2, 3)),
        "b": ("I64", (0, 4)),
        "c": ("F16", ()),
        "d": ("BOOL", (2,)),
    }
    for name, array in arrays.items():
        assert content[found[name].start : found[name].end] == array.tobytes()
        assert found[name].size == array.nbytes


def test_no_weight_data_is_read(tmp_path: Path) -> None:
    """INV-1: a header is read from a file whose data is a terabyte of nothing."""
    size = 1 << 40
    path = _write(tmp_path / "model.safetensors", {"w": _entry(0, size)})
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size + size)
    assert read_header(path).tensors[0].size == size


@pytest.mark.parametrize("cut", [1, 10, 12, 30, 200])
def test_a_file_cut_short_says_how_many_bytes_it_has_and_should_have(
    tmp_path: Path, cut: int
) -> None:
    """Issue 2: truncated safetensors; report F13."""
    path = _write(tmp_path / "model.safetensors", {"w": _entry(0, 12)}, bytes(12))
    size = path.stat().st_size
    cut = min(cut, size - 3)
    path.write_bytes(path.read_bytes()[: size - cut])
    with pytest.raises(RequestError, match=r"model\.safetensors is truncated") as caught:
        read_header(path)
    assert f"it has {size - cut} bytes" in str(caught.value)
    if cut <= 12:
        assert f"instead of {size}" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"w": _entry(0, 4)}, 5, "has .* bytes instead of"),
        ({"a": _entry(0, 4), "b": _entry(3, 7)}, 7, "data of 'b' starts at byte"),
        ({"a": _entry(0, 4), "b": _entry(5, 7)}, 7, "data of 'b' starts at byte"),
        ({"w": _entry(0, 4, "F32", [2])}, 4, r"w spans 4 bytes, and F32 \[2\] needs 8"),
        ({"w": _entry(0, 4, "F33", [1])}, 4, "w: dtype is 'F33'"),
        ({"w": _entry(0, 4, "U8", [-4])}, 4, "w: shape is"),
        ({"w": _entry(0, 4, "U8", [4.0])}, 4, "w: shape is"),
        ({"w": _entry(0, 4, "U8", "4")}, 4, "w: shape is '4'"),
        ({"w": {**_entry(0, 4), "data_offsets": [4, 0]}}, 4, "w: data_offsets is"),
        ({"w": {**_entry(0, 4), "data_offsets": [0, 2, 4]}}, 4, "w: data_offsets is"),
        ({"w": 4}, 4, "w is 4, not an object"),
        ({"w": {}}, 4, "w: dtype is missing"),
        ({"__metadata__": {"format": 1}}, 0, "__metadata__: format is 1"),
        ({"w": _entry(0, 4, "F64", [2**62, 2**62, 2**62])}, 4, "w spans 4 bytes"),
    ],
)
def test_a_damaged_header_names_file_and_tensor(
    tmp_path: Path, header: Tensors, data: int, message: str
) -> None:
    """INV-1."""
    path = _write(tmp_path / "model.safetensors", header, bytes(data))
    with pytest.raises(RequestError, match=message) as caught:
        read_header(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 3) + b"{]}", struct.pack("<Q", 2) + b"[]"],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"model\.safetensors is not"):
        read_header(path)


def test_a_tensor_named_twice_in_one_header_is_an_error(tmp_path: Path) -> None:
    """INV-2: duplicates are errors."""
    path = tmp_path / "model.safetensors"
    entry = json.dumps(_entry(0, 0))
    text = f'{{"w":{entry},"w":{entry}}}'.encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(RequestError, match="'w' stands twice"):
        read_header(path)


def test_types_smaller_than_a_byte_are_measured_in_bits(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.safetensors", {"w": _entry(0, 4, "F4", [8])}, bytes(4))
    assert read_header(path).tensors[0].shape == (8,)


def test_a_folder_is_read_once_and_whole(tmp_path: Path) -> None:
    """INV-1, INV-2, CFG-1: every .json but indexes; consolidated weights are not read."""
    files = {"model-1.safetensors": ["a", "b"], "model-2.safetensors": ["c", "unlisted"]}
    index = {"a": "model-1.safetensors", "c": "model-2.safetensors", "b": "model-1.safetensors"}
    folder = _folder(tmp_path, {**files, "consolidated.safetensors": ["z"]}, index)
    for name in ("tokenizer.json", "chat_template.jinja", "pytorch_model.bin.index.json", "x.py"):
        (folder / name).write_text("{}")
    (folder / "sub.json").mkdir()
    inventory = read_inventory(folder)
    assert inventory.config == {"architectures": ["Foo"]}
    assert sorted(inventory.tensors) == ["a", "b", "c"]
    assert inventory.tensors["c"].file == folder / "model-2.safetensors"
    assert list(inventory.json_files) == ["config.json", "tokenizer.json"]
    assert inventory.chat_template == folder / "chat_template.jinja"
    assert set(inventory.metadata) == {folder / name for name in files}


def test_how_embeddings_are_pooled_is_part_of_a_model(tmp_path: Path) -> None:
    """API-13: of all subfolders, sentence-transformers' Pooling folders alone are read."""
    folder = _folder(tmp_path, {"model.safetensors": ["a"]})
    for name in ("modules.json", "1_Pooling/config.json", "onnx/config.json", "1_Pooling/x.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    files = read_inventory(folder).json_files
    assert list(files) == ["1_Pooling/config.json", "config.json", "modules.json"]
    assert files["1_Pooling/config.json"] == folder / "1_Pooling" / "config.json"


def test_without_an_index_the_model_files_are_read(tmp_path: Path) -> None:
    """INV-3."""
    shards = {"model-1.safetensors": ["a"], "model-2.safetensors": ["b"]}
    folder = _folder(tmp_path / "two", {**shards, "consolidated.safetensors": ["z"]})
    assert sorted(read_inventory(folder).tensors) == ["a", "b"]
    assert read_inventory(folder).chat_template is None
    one = _folder(tmp_path / "one", {"model.safetensors": ["a"], "other.safetensors": ["z"]})
    assert list(read_inventory(one).tensors) == ["a"]


@pytest.mark.parametrize(
    ("files", "index", "message"),
    [
        ({"model-1.safetensors": ["a"]}, {"a": "model-2.safetensors"}, "incomplete: its index"),
        (
            {"model-1.safetensors": ["a"]},
            {"a": "model-1.safetensors", "lost.weight": "model-1.safetensors"},
            r"incomplete: tensor 'lost\.weight' is not in model-1",
        ),
        (
            {"model-1.safetensors": ["a", "b"], "model-2.safetensors": ["b"]},
            {"a": "model-1.safetensors", "b": "model-2.safetensors"},
            "tensor 'b' is in model-1.safetensors, and .* says model-2",
        ),
        ({"model-1.safetensors": ["a"]}, {}, "has no tensors"),
        ({"model-1.safetensors": ["a"]}, {"a": 1}, "a is 1, not a string"),
    ],
)
def test_an_index_and_its_shards_must_agree(
    tmp_path: Path, files: Mapping[str, list[str]], index: Tensors, message: str
) -> None:
    """INV-2, T6."""
    with pytest.raises(RequestError, match=message):
        read_inventory(_folder(tmp_path, files, index))


@pytest.mark.parametrize(
    "shard",
    [
        *("../model.safetensors", "/etc/model.safetensors", "a/model.safetensors", "model.bin"),
        *("..\\model.safetensors", "C:model.safetensors", ".hidden.safetensors", "model.pt"),
    ],
)
def test_a_shard_is_a_plain_file_name(tmp_path: Path, shard: str) -> None:
    """INV-2: an index leads nowhere else."""
    folder = _folder(tmp_path / "m", {"model.safetensors": ["a"]}, {"a": shard})
    _write(tmp_path / "model.safetensors", {"a": _entry(0, 1)}, bytes(1))
    with pytest.raises(RequestError, match=r"not a plain file name that ends in \.safetensors"):
        read_inventory(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"model.safetensors": ["a"], "model-00001-of-00002.safetensors": ["b"]},
            r"ambiguous: it has model\.safetensors and model-00001-of-00002",
        ),
        (
            {"model-1.safetensors": ["a"], "model-2.safetensors": ["a"]},
            r"tensor 'a' is in model-1\.safetensors and in model-2",
        ),
        ({"consolidated.safetensors": ["a"]}, "has no tensors"),
        ({"model.safetensors": []}, "has no tensors"),
    ],
)
def test_unclear_files_are_an_error(
    tmp_path: Path, files: Mapping[str, list[str]], message: str
) -> None:
    """INV-3, T7."""
    with pytest.raises(RequestError, match=message):
        read_inventory(_folder(tmp_path, files))


def test_a_folder_without_a_readable_config_is_an_error(tmp_path: Path) -> None:
    """INV-1."""
    with pytest.raises(RequestError, match=r"cannot read .*config\.json"):
        read_inventory(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RequestError, match=r"config\.json is not a JSON object"):
        read_inventory(tmp_path)
