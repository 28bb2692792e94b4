"""The header of a GGUF file: read like the gguf package reads it, and refused by name (GUF-1)."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from forerun.base.errors import ImportFailedError
from forerun.importer.gguf_reader.file import open_gguf
from unit.importer.gguf_files import F32, write_gguf

KEYS: dict[str, object] = {
    "a.flag": True,
    "a.whole": 7,
    "a.eps": 1e-5,
    "a.text": "naïve\n日本",
    "a.texts": ["x", "", "▁y"],
    "a.wholes": [3, -1, 2**31 - 1],
    "a.numbers": [0.5, -2.25],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = np.arange(12, dtype=np.float32)
    q8 = (np.arange(4 * 68) % 251).astype(np.uint8).reshape(2, 2, 68)
    tensors = {
        "vector": (values, F32),
        "matrix": (values.reshape(3, 4), F32),
        "halves": (values[:6].astype(np.float16).reshape(2, 3), GGMLQuantizationType.F16),
        "blocks": (q8, GGMLQuantizationType.Q8_0),
    }
    return write_gguf(tmp_path / "a.gguf", "llama", KEYS, tensors)


def test_keys_and_tensors_are_those_of_the_gguf_package(path: Path) -> None:
    """GUF-1, GUF-3: every value, shape (outermost first) and byte."""
    ours, theirs = open_gguf(path), GGUFReader(path)
    assert list(ours.metadata.values) == [k for k in theirs.fields if not k.startswith("GGUF.")]
    for key in KEYS:
        ours_value, theirs_value = ours.metadata.values[key], theirs.fields[key].contents()
        assert ours_value == theirs_value or np.float32(ours_value) == np.float32(theirs_value)
    assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
    for tensor, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert tensor.type == other.tensor_type
        assert tensor.shape == tuple(reversed(other.shape.tolist()))
        rows = np.concatenate(list(ours.read_rows(tensor, 2)))
        assert rows.tobytes() == other.data.tobytes()


def test_a_float32_key_is_the_shortest_number_that_rounds_to_it(path: Path) -> None:
    """GUF-7: 1e-5 as the checkpoint's config.json had it, not 9.99999974e-06."""
    assert open_gguf(path).metadata.number("a.eps") == 1e-5


def test_rows_come_in_pieces_of_the_size_asked_for(path: Path) -> None:
    file = open_gguf(path)
    matrix = next(tensor for tensor in file.tensors if tensor.name == "matrix")
    assert [len(rows) for rows in file.read_rows(matrix, 2)] == [2, 1]


def test_a_file_cut_short_is_refused_wherever_it_ends(path: Path, tmp_path: Path) -> None:
    """F13: named, and never read past its end."""
    whole = path.read_bytes()
    last = open_gguf(path).tensors[-1]  # padding may follow it
    cut = tmp_path / "cut.gguf"
    for size in range(0, last.start + last.size, 7):
        cut.write_bytes(whole[:size])
        with pytest.raises(ImportFailedError, match=r"cut\.gguf"):
            open_gguf(cut)


def test_the_last_tensor_cut_by_ten_bytes_is_named(path: Path, tmp_path: Path) -> None:
    """F13."""
    cut = tmp_path / "cut.gguf"
    last = open_gguf(path).tensors[-1]
    cut.write_bytes(path.read_bytes()[: last.start + last.size - 10])
    with pytest.raises(ImportFailedError, match=r"tensor blocks ends at byte .* fetch the file"):
        open_gguf(cut)


def test_a_tensor_that_vanishes_while_it_is_read_is_an_error(path: Path) -> None:
    file = open_gguf(path)
    path.write_bytes(path.read_bytes()[: file.tensors[-1].start])
    with pytest.raises(ImportFailedError, match="ends inside tensor blocks"):
        list(file.read_rows(file.tensors[-1], 100))


def test_what_is_no_gguf_or_another_version_is_refused(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK" + path.read_bytes())
    with pytest.raises(ImportFailedError, match="not a GGUF file"):
        open_gguf(other)
    other.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + path.read_bytes()[8:])
    with pytest.raises(ImportFailedError, match="version 1"):
        open_gguf(other)


def test_a_key_of_another_type_is_named(path: Path) -> None:
    metadata = open_gguf(path).metadata
    for read, key, wanted in (
        (metadata.whole, "a.text", "a whole number"),
        (metadata.text, "a.whole", "a text"),
        (metadata.whole, "a.flag", "a whole number"),
        (metadata.texts, "a.wholes", "a text"),
        (metadata.wholes, "a.numbers", "whole numbers"),
        (metadata.whole, "a.absent", "a.absent"),
    ):
        with pytest.raises(ImportFailedError, match=rf"a\.gguf.*{wanted}"):
            read(key)


def test_random_damage_to_a_header_never_escapes_as_another_error(
    path: Path, tmp_path: Path
) -> None:
    """A damaged file is an ImportFailedError or still a readable file; nothing else."""
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole)
        data[int(random.integers(4, 700))] = int(random.integers(0, 256))
        (tmp_path / "bad.gguf").write_bytes(data)
        try:
            open_gguf(tmp_path / "bad.gguf")
        except ImportFailedError:
            continue
