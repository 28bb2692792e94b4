"""The small parts of an import: plans, tensor files, the journal, progress."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load

from forerun.base.errors import ImportFailedError
from forerun.importer.convert import is_finite, unpermuted_rows
from forerun.importer.journal import FORMAT, Journal
from forerun.importer.plan import TensorPlan, in_order
from forerun.importer.progress import Meter, Reporter
from forerun.importer.write import ALIGNMENT, TensorFile, part, write_tensors
from forerun.store.blobs import Blob, Digest
from unit.importer.gguf_files import interleave


def plan(name: str, source: str) -> TensorPlan:
    return TensorPlan(name, (source,), (2, 3), 24, "F32")


def test_plans_are_sorted_by_name() -> None:
    """PLN-1."""
    plans = in_order([plan("b", "1"), plan("a", "2"), plan("c", "3")])
    assert [p.name for p in plans] == ["a", "b", "c"]


def test_two_sources_of_one_tensor_are_both_named() -> None:
    """PLN-4, 07 T8."""
    with pytest.raises(ImportFailedError, match=r"blk\.0\.x and model\.y are both w"):
        in_order([plan("w", "blk.0.x"), plan("v", "z"), plan("w", "model.y")])


@given(heads=st.integers(1, 4), half=st.integers(1, 4), columns=st.integers(1, 3))
def test_unpermuting_undoes_the_interleaving(heads: int, half: int, columns: int) -> None:
    """GUF-4: whatever the heads, rows come back in their order."""
    rows = np.arange(heads * 2 * half * columns).reshape(-1, columns)
    assert np.array_equal(interleave(rows, heads)[unpermuted_rows(len(rows), heads)], rows)


@pytest.mark.parametrize(
    ("dtype", "bits", "finite"),
    [
        ("F16", 0x7C00, False),
        ("F16", 0xFC01, False),
        ("F16", 0xFBFF, True),
        ("BF16", 0xFF80, False),
        ("BF16", 0x7F81, False),
        ("BF16", 0x7F7F, True),
        ("F8_E4M3", 0x7F00, False),
        ("F8_E4M3", 0x7E80, True),
        ("I16", 0xFFFF, True),
    ],
)
def test_numbers_are_told_from_what_is_none(dtype: str, bits: int, finite: bool) -> None:
    """F13: the largest of a type is one, an infinity is not."""
    data = np.array([0, bits, 0], "<u2").view(np.uint8)
    assert is_finite(data, dtype) is finite


@pytest.mark.parametrize(("dtype", "item"), [("F32", np.float32), ("F64", np.float64)])
def test_wide_numbers_are_told_from_what_is_none(dtype: str, item: type[np.floating]) -> None:
    """F13."""
    largest = np.finfo(item).max
    assert is_finite(np.array([0, -largest], item).view(np.uint8), dtype)
    for value in (np.inf, -np.inf, np.nan):
        assert not is_finite(np.array([largest, value], item).view(np.uint8), dtype)


def test_a_tensor_file_is_read_back_by_the_library() -> None:
    """PLN-1: parts in chunks of any size, metadata, data aligned for mapping."""
    first, second = np.arange(6, dtype=np.float32), np.arange(4, dtype=np.float16)
    parts = (
        part("w", "F32", (2, 3), [first[:1], first[1:]]),
        part("w.scale", "F16", (4,), iter([second])),
    )
    sink = io.BytesIO()
    write_tensors(TensorFile(parts, {"quant_type": "int8"}), sink)
    data = sink.getvalue()
    found = load(data)
    assert np.array_equal(found["w"], first.reshape(2, 3))
    assert np.array_equal(found["w.scale"], second)
    assert (8 + int.from_bytes(data[:8], "little")) % ALIGNMENT == 0
    assert json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"] == {
        "quant_type": "int8"
    }


def test_equal_tensors_give_equal_files() -> None:
    """CFG-3: so that a blob is stored once."""
    files = []
    for chunks in ([4], [1, 3]):
        sink = io.BytesIO()
        pieces = np.split(np.arange(4, dtype=np.float32), np.cumsum(chunks)[:-1])
        write_tensors(TensorFile((part("w", "F32", (4,), pieces),)), sink)
        files.append(sink.getvalue())
    assert files[0] == files[1]


BLOB = Blob(Digest("a" * 64), 10)
OTHER = Blob(Digest("b" * 64), 20)


def test_a_journal_remembers_across_processes(tmp_path: Path) -> None:
    """CAT-4."""
    journal = Journal(tmp_path / "tensors")
    journal.add("x", BLOB)
    journal.add("y\n", OTHER)
    again = Journal(tmp_path / "tensors")
    assert (again.done("x"), again.done("y\n"), again.done("z")) == (BLOB, OTHER, None)
    again.forget()
    assert again.done("x") is None
    assert Journal(tmp_path / "tensors").done("x") is None


def test_a_journal_cut_at_any_byte_is_still_a_journal(tmp_path: Path) -> None:
    """07 T13: a killed writer costs its last line, and the next one's lines are whole."""
    path = tmp_path / "tensors"
    journal = Journal(path)
    journal.add("x", BLOB)
    whole = len(path.read_bytes())
    journal.add("y", OTHER)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        cut = Journal(path)
        assert cut.done("x") == (BLOB if size >= whole - 1 else None)
        cut.add("z", OTHER)
        assert Journal(path).done("z") == OTHER


def test_a_journal_of_another_format_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tensors"
    path.write_text(json.dumps([FORMAT + 1, "x", str(BLOB.digest), 10]) + "\n[]\nnull\n7\n")
    assert Journal(path).done("x") is None


def test_byte_counts_are_thinned_out_and_the_last_is_kept(tmp_path: Path) -> None:
    """RUN-13: a parent is not flooded, and sees the end."""
    path = tmp_path / "events"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    now = 0.0
    meter = Meter(Reporter(descriptor, clock=lambda: now, interval_s=1.0), "converting", 100)
    for _ in range(100):
        meter.advance(1)
        now += 0.03
    os.close(descriptor)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["completed"] for event in events] == [1, 35, 69, 100]
    assert events[-1] == {
        "type": "status",
        "status": "converting",
        "completed": 100,
        "total": 100,
    }
