"""Law: a row of a static batch gives what a cache of one sequence gives, whatever its neighbours.

Rows are cut back and go on otherwise at any step; capacity and bucket are small, so
that rows of different lengths lie on both sides of a bucket's end.
"""

import json
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tiny import VOCABULARY, tiny_folder
from forerun.base.errors import UnsupportedError
from forerun.cache import static
from forerun.cache.static import StaticBatch
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, TargetModel
from forerun.models.load import load_model
from forerun.nn.placement import Placement

CPU = torch.device("cpu")
ROWS, CAPACITY, BUCKET = 3, 20, 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return _load(tmp_path_factory.mktemp("static"), "llama")


def _load(folder, family) -> TargetModel:
    tiny_folder(folder, family)
    config = json.loads((folder / "config.json").read_text())
    files = list(folder.glob("*.safetensors"))
    return load_model(config, files, Placement(torch.float32, CPU))


def _alone(model: TargetModel, tokens: list[int]) -> torch.Tensor:
    caches = model.new_caches(CacheOptions(CAPACITY))
    with torch.inference_mode():
        steps = [
            model.forward(Batch.of([token], place, CPU), caches).hidden[0, 0]
            for place, token in enumerate(tokens)
        ]
    return torch.stack(steps)


def assert_of(batch: Batch, offsets: Sequence[int]) -> None:
    """On the device as on the host; no more columns are read than a bucket past the longest row."""
    assert batch.start_offsets.tolist() == list(batch.starts) == list(offsets)
    assert batch.writes is not None
    for write in batch.writes:
        assert isinstance(write, static.Write)
        assert write.history.lengths is not None
        assert write.history.lengths.tolist() == [offset + 1 for offset in offsets]
        assert max(offsets) < write.history.live <= max(offsets) + BUCKET


@settings(max_examples=12)
@given(st.data())
def test_each_row_equals_its_sequence_alone(model: TargetModel, data: st.DataObject) -> None:
    caches = model.new_caches(CacheOptions(CAPACITY))
    batch = StaticBatch.beside(caches, ROWS, CAPACITY, bucket=BUCKET)
    sequences: list[list[int]] = [[] for _ in range(ROWS)]
    hidden: list[list[torch.Tensor]] = [[] for _ in range(ROWS)]
    for _ in range(data.draw(st.integers(1, CAPACITY))):
        for row in sorted(data.draw(st.sets(st.integers(0, ROWS - 1), max_size=1))):
            kept = data.draw(st.integers(0, batch.offsets[row]))
            batch.rewind([row], [kept])
            sequences[row], hidden[row] = sequences[row][:kept], hidden[row][:kept]
        tokens = [data.draw(st.integers(0, VOCABULARY - 1)) for _ in range(ROWS)]
        written = batch.step(torch.tensor(tokens))
        assert_of(written, batch.offsets)
        with torch.inference_mode():
            step = model.forward(written, batch.caches)
        batch.advance()
        for row, token in enumerate(tokens):
            sequences[row].append(token)
            hidden[row].append(step.hidden[row, 0])
    assert list(batch.offsets) == [min(len(row), CAPACITY - 1) for row in sequences]
    for tokens, found in zip(sequences, hidden, strict=True):
        torch.testing.assert_close(torch.stack(found), _alone(model, tokens), rtol=1e-4, atol=1e-4)


def test_a_full_row_overwrites_its_last_token(model: TargetModel) -> None:
    batch = StaticBatch.beside(model.new_caches(CacheOptions(4)), 1, 4)
    for token in (1, 2, 3, 4, 5):
        with torch.inference_mode():
            last = model.forward(batch.step(torch.tensor([token])), batch.caches).hidden[0, 0]
        batch.advance()
    assert list(batch.offsets) == batch.starts.tolist() == [3]
    torch.testing.assert_close(last, _alone(model, [1, 2, 3, 5])[-1], rtol=1e-4, atol=1e-4)


def test_buffers_keep_their_addresses(model: TargetModel) -> None:
    """What a captured graph has read once must stay where it is."""
    batch = StaticBatch.beside(model.new_caches(CacheOptions(CAPACITY)), ROWS, CAPACITY)

    def addresses() -> list[int]:
        step = batch.step(torch.tensor([1, 2, 3]))
        assert step.writes is not None
        found = [step.start_offsets.data_ptr()]
        for write in step.writes:
            assert write is not None
            assert isinstance(write, static.Write)
            assert write.index is not None
            assert write.history.lengths is not None
            parts = (write.keys, write.values, write.index, write.history.lengths)
            found += [part.data_ptr() for part in parts]
        return found

    before = addresses()
    batch.advance()
    batch.rewind([1], [0])
    assert addresses() == before


def test_a_sliding_window_is_refused(tmp_path) -> None:
    model = _load(tmp_path, "gemma3")
    with pytest.raises(UnsupportedError, match="layer 0"):
        StaticBatch.beside(model.new_caches(CacheOptions(CAPACITY)), ROWS, CAPACITY)
