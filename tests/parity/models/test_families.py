"""Every family against transformers in fp32, whole, in chunks and token by token (T1).

The tolerance is the project's bar for fp32: 1e-4 of the largest logit of a position. What is left
below it is the order of float32 sums.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import (
    CPU,
    chunked_logits,
    edit_config,
    edit_tensors,
    loaded,
    logits,
    relative_error,
)
from fixtures.tiny import Family, tiny_folder, tiny_model
from forerun.base.errors import LoadError
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, TappedModel

TOLERANCE = 1e-4
PROMPT = 45  # several times the window of 8

SHAPES: list[tuple[Family, int, Mapping[str, object]]] = [
    # every query head has a key head of its own; hidden 80 is not heads * head_dim (F03)
    ("llama", 1, {"hidden_size": 80, "num_key_value_heads": 4, "head_dim": 16}),
    # three query heads a key head
    ("llama", 2, {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 18}),
    # all query heads share one
    ("llama", 3, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    # head_dim only by hidden / heads
    ("llama", 4, {"head_dim": None, "num_attention_heads": 2, "num_key_value_heads": 1}),
    ("qwen3", 1, {"hidden_size": 80, "num_key_value_heads": 4, "head_dim": 10}),
    ("qwen3", 2, {"hidden_size": 72, "num_attention_heads": 6, "head_dim": 22}),
    ("qwen3", 3, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("gemma3", 1, {"hidden_size": 80, "num_key_value_heads": 4, "head_dim": 10}),
    ("gemma3", 2, {"hidden_size": 72, "num_attention_heads": 6, "head_dim": 22}),
    ("gemma3", 3, {"num_key_value_heads": 1, "tie_word_embeddings": False}),
    ("gemma3", 4, {"sliding_window": 3, "final_logit_softcapping": 2.0}),
]
CHUNKS = {"token by token": (1,), "uneven": (7, 1, 1, 20, 2), "past the slack": (3, 30, 12)}


@pytest.mark.parametrize(("family", "seed", "config"), SHAPES)
def test_logits_equal_transformers(
    tmp_path: Path, family: Family, seed: int, config: Mapping[str, object]
) -> None:
    """T1, CON-1, CON-8, CON-9, CON-12, LLA-1, QW3-1, GM3-2..5, GM3-7, TEN-1, TEN-2, WID-5: whole
    without caches, and over caches in any chunks.

    LIN-12: the fused projections give what the separate ones give.
    """
    model = loaded(tiny_folder(tmp_path, family, seed=seed, **config))
    theirs = tiny_model(family, seed=seed, **config)
    tokens = torch.randint(0, 264, (PROMPT,), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        wanted = theirs(tokens[None]).logits[0]
    ids = tokens.tolist()
    assert relative_error(logits(model, ids), wanted) <= TOLERANCE
    for name, chunks in CHUNKS.items():
        assert relative_error(chunked_logits(model, ids, chunks), wanted) <= TOLERANCE, name


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_taps_equal_hidden_states(tmp_path: Path, family: Family) -> None:
    """CON-2: entry i is the residual stream after i layers, as transformers' output_hidden_states
    has it; the one after the last layer is what the final norm takes."""
    folder = tiny_folder(tmp_path, family, num_hidden_layers=3, layer_types=None)
    model = loaded(folder)
    assert isinstance(model, TappedModel)
    tokens = list(range(20))
    plain = model.forward(Batch.of(tokens, 0, CPU), None)
    assert plain.conditioning is plain.hidden
    with torch.inference_mode():
        theirs = tiny_model(family, num_hidden_layers=3, layer_types=None)
        wanted = theirs(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    layers = (2, 0, 1, 3)
    model.tap(layers)
    caches = model.new_caches(CacheOptions(context=32, slack=16))
    with torch.inference_mode():
        forward = model.forward(Batch.of(tokens, 0, CPU), caches)
    taps = forward.conditioning[0].split(model.facts.hidden_size, dim=-1)
    for index, tap in zip(layers[:-1], taps, strict=False):
        assert relative_error(tap, wanted[index][0]) <= TOLERANCE, index
    assert torch.equal(forward.hidden, plain.hidden)
    with torch.inference_mode():
        normed = theirs.model.norm(taps[-1])
    assert relative_error(normed, wanted[3][0]) <= TOLERANCE


def test_a_tap_outside_the_model_is_refused(tmp_path: Path) -> None:
    model = loaded(tiny_folder(tmp_path, "llama"))
    assert isinstance(model, TappedModel)
    with pytest.raises(LoadError, match=r"after layer 3; the model has 2 layers"):
        model.tap([0, 3])


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_biases_count_where_their_tensors_exist(tmp_path: Path, family: Family) -> None:
    """LIN-1, LOD-7: attention_bias and mlp_bias, one part of a fused projection without one too."""
    flags: dict[str, object] = {"attention_bias": True}
    if family == "llama":
        flags["mlp_bias"] = True
    theirs = tiny_model(family, **flags)
    folder = tiny_folder(tmp_path, family, **flags)
    tokens = list(range(30))
    with torch.inference_mode():
        wanted = theirs(torch.tensor([tokens])).logits[0]
        assert relative_error(logits(loaded(folder), tokens), wanted) <= TOLERANCE
        missing = "model.layers.0.self_attn.k_proj.bias"
        edit_config(folder, attention_bias=False)
        edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if n != missing})
        theirs.model.layers[0].self_attn.k_proj.bias.zero_()
        wanted = theirs(torch.tensor([tokens])).logits[0]
    assert relative_error(logits(loaded(folder), tokens), wanted) <= TOLERANCE


@pytest.mark.parametrize(
    ("flag", "tensor"), [("attention_bias", "self_attn.q_proj"), ("mlp_bias", "mlp.gate_proj")]
)
def test_a_bias_that_the_config_announces_must_be_there(
    tmp_path: Path, flag: str, tensor: str
) -> None:
    folder = tiny_folder(tmp_path, "llama")
    edit_config(folder, **{flag: True})
    with pytest.raises(LoadError, match=rf"{tensor}\.bias of layer 0 is missing"):
        loaded(folder)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_sharded_checkpoints_load(tmp_path: Path, family: Family) -> None:
    folder = tiny_folder(tmp_path, family, shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    tokens = list(range(30))
    with torch.inference_mode():
        wanted = tiny_model(family)(torch.tensor([tokens])).logits[0]
    assert relative_error(logits(loaded(folder), tokens), wanted) <= TOLERANCE


def test_bf16_embeddings_are_scaled_by_a_rounded_factor(tmp_path: Path) -> None:
    """GM3-3: sqrt(3072) is 55.5 in bf16, and that is what the model was trained with."""
    folder = tiny_folder(tmp_path, "gemma3", hidden_size=72, dtype=torch.bfloat16)
    model = loaded(folder, torch.bfloat16)
    assert isinstance(model, TappedModel)
    model.tap([0])
    theirs = tiny_model("gemma3", hidden_size=72).to(torch.bfloat16)
    tokens = list(range(100))
    with torch.inference_mode():
        ours = model.forward(Batch.of(tokens, 0, CPU), None).conditioning
        wanted = theirs.model.embed_tokens(torch.tensor([tokens]))
    assert torch.equal(ours, wanted)
