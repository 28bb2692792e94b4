"""The model that heads are trained for has the values that serve, and shows the same streams."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fixtures.checkpoints import logits, read_config, relative_error
from fixtures.quantised import quantised
from fixtures.tiny import tiny_folder, tiny_model
from forerun.base.errors import UnsupportedError
from forerun.models.tensor_files import open_tensors
from forerun.training.target import load_target

THETA = "rope_parameters"
CPU = torch.device("cpu")


def _load(folder: Path, family: str, **config: object):
    checkpoint = tiny_folder(folder / "checkpoint", family, **config)
    work = folder / "work"
    work.mkdir()
    stated = json.loads((checkpoint / "config.json").read_text())
    return load_target(stated, sorted(checkpoint.glob("*.safetensors")), work, CPU)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_streams_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    target = _load(tmp_path, family, num_hidden_layers=6)
    assert target.taps == (1, 4)
    tokens = torch.randint(0, 250, (2, 9), generator=torch.Generator().manual_seed(0))
    hidden, taps = target.read(tokens)
    with torch.no_grad():
        peer = tiny_model(family, num_hidden_layers=6)(tokens, output_hidden_states=True)
    expected = torch.cat([peer.hidden_states[index] for index in target.taps], -1)
    torch.testing.assert_close(taps, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(target.model.unembed(hidden), peer.logits, rtol=1e-4, atol=1e-3)


def test_padding_changes_nothing_in_front_of_it(tmp_path: Path) -> None:
    target = _load(tmp_path, "llama")
    tokens = torch.randint(0, 250, (1, 9), generator=torch.Generator().manual_seed(0))
    padded = torch.cat((tokens, torch.zeros(1, 5, dtype=torch.int64)), 1)
    for short, long in zip(target.read(tokens), target.read(padded), strict=True):
        torch.testing.assert_close(long[:, :9], short, rtol=1e-4, atol=1e-4)


def test_a_family_without_heads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="Gemma3ForCausalLM"):
        _load(tmp_path, "gemma3")


def test_a_head_has_the_sizes_of_its_target_where_the_config_is_silent(tmp_path: Path) -> None:
    """What a config leaves out is the family's, not the head's; a draft's tensors stay out."""
    checkpoint = tiny_folder(tmp_path / "checkpoint", "qwen3", num_hidden_layers=6)
    stated = json.loads((checkpoint / "config.json").read_text())
    silent = {name: stated[name] for name in stated if name not in ("rms_norm_eps", THETA)}
    draft = tmp_path / "draft.safetensors"
    save_file({"draft.d2t": torch.arange(3)}, draft)
    target = load_target(silent, [*checkpoint.glob("*.safetensors"), draft], tmp_path, CPU)
    shape = target.shape(40)
    assert (shape.eps, shape.rope_theta, shape.columns) == (1e-6, 1e6, 40)
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == tuple(
        stated[name]
        for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    assert "draft.d2t" not in open_tensors([tmp_path / "target-float32.safetensors"])


@pytest.mark.parametrize("factor", [None, 0.5])
def test_quantised_weights_are_the_values_that_serve(tmp_path: Path, factor: float | None) -> None:
    stored = quantised(tmp_path, "llama", global_scale=factor)
    (tmp_path / "work").mkdir()
    target = load_target(read_config(stored.folder), stored.files, tmp_path / "work", CPU)
    tokens = torch.randint(0, 250, (1, 9), generator=torch.Generator().manual_seed(0))
    ours = target.model.unembed(target.read(tokens)[0])[0]
    assert relative_error(ours, logits(stored.load(native=False), tokens[0].tolist())) < 1e-4
