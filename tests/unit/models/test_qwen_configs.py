"""What configs of the hybrid family and of qwen3_moe say, leave out and get wrong."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3NextConfig

from fixtures.checkpoints import edit_config, edit_tensors, loaded, logits, read_config
from fixtures.qwen import Tensors, hybrid_folder, wrapped_folder
from fixtures.tiny import tiny_folder
from forerun.base.errors import LoadError
from forerun.cache.kv import KVCache
from forerun.cache.recurrent import RecurrentCache
from forerun.contract.batch import Batch
from forerun.contract.media import MediaItem
from forerun.contract.model import CacheOptions, MediaModel
from forerun.models import qwen3_moe
from forerun.models.config import ConfigReader
from forerun.models.experts import read_experts, sparse_layers
from forerun.models.load import load_model
from forerun.models.qwen3_5.config import layer_kinds, read_hybrid
from forerun.models.registry import REGISTRY, find
from forerun.nn.placement import Placement
from forerun.nn.recurrence import DeltaHeads

LEAST: dict[str, object] = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
EXPERTS: dict[str, object] = {"num_experts": 8, "moe_intermediate_size": 32}


def reader(**changes: object) -> ConfigReader:
    return ConfigReader({**LEAST, **changes})


def test_every_name_of_the_family_is_one_code() -> None:
    """QWN-1, Q3M"""
    names = {
        f"Qwen3{kind}{moe}For{task}"
        for kind in ("_5", "Next")
        for moe in ("", "Moe")
        for task in ("CausalLM", "ConditionalGeneration")
    }
    builds = {find(ConfigReader({"architectures": [name]})) for name in names}
    assert len(names) == 8
    assert len(builds) == 1
    assert REGISTRY["Qwen3MoeForCausalLM"] is qwen3_moe.build


def test_what_a_config_of_the_family_leaves_out() -> None:
    """QWN-2, QWN-4, QWN-12. The section of M-RoPE has no default here, since text alone is served,
    and to text the channels are one."""
    found = read_hybrid(reader(**EXPERTS))
    assert (found.shape.eps, found.taps, found.rope.theta) == (1e-6, 4, 100000.0)
    assert found.rope.dim == 6  # a quarter of 24
    assert not found.shape.tied
    assert found.delta == DeltaHeads(2, 6, 16, 12)
    assert found.attends == (False, False, False, True) * 2
    assert found.experts is not None
    assert (found.experts.top, found.sparse) == (1, (True,) * 8)
    assert found.experts.renormalised  # of one expert too, whose weight is then 1
    kept = read_hybrid(reader(**EXPERTS, num_experts_per_tok=2, norm_topk_prob=False)).experts
    assert kept is not None
    assert not kept.renormalised


def test_text_config_wins_over_the_top_level() -> None:
    """QWN-2, TEN-3 (F09): as vision models have it, and rope_parameters over both."""
    rope = {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]}
    nested = {**LEAST, "rope_parameters": rope, "rope_theta": 5e5, "linear_conv_kernel_dim": 3}
    found = read_hybrid(ConfigReader({"text_config": nested, "linear_conv_kernel_dim": 5}))
    assert (found.rope.theta, found.rope.dim, found.taps) == (1e7, 12, 3)
    flat = read_hybrid(reader(rope_theta=5e5, partial_rotary_factor=1.0))
    assert (flat.rope.theta, flat.rope.dim) == (5e5, 24)


def test_kinds_of_layers_by_list_and_by_interval() -> None:
    """QWN-4"""
    listed = ["full_attention", "linear_attention", "full"]
    assert layer_kinds(ConfigReader({"layer_types": listed}), 3) == (True, False, True)
    every = layer_kinds(ConfigReader({"full_attention_interval": 3}), 7)
    assert every == (False, False, True, False, False, True, False)
    wanted = Qwen3NextConfig(num_hidden_layers=9).layer_types
    assert layer_kinds(ConfigReader({}), 9) == tuple(kind == "full_attention" for kind in wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, "names 1 layers and num_hidden_layers is 8"),
        ({"layer_types": ["sliding_attention"] * 8}, "layer_types names 'sliding_attention'"),
        ({"linear_num_value_heads": 3}, "linear_num_key_heads 2 does not divide .* 3"),
        ({"linear_key_head_dim": None}, "has no linear_key_head_dim"),
        ({"attn_output_gate": False}, "attn_output_gate to False"),
        ({"use_sliding_window": True}, "use_sliding_window to True"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "hidden_act to 'gelu_pytorch_tanh'"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor rotates 1 of 24"),
        ({**EXPERTS, "num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ({"num_experts": 8}, "has no moe_intermediate_size"),
        (
            {**EXPERTS, "mlp_only_layers": [0], "intermediate_size": None},
            "has no intermediate_size",
        ),
    ],
)
def test_a_config_that_cannot_be_served_names_the_field(
    changes: dict[str, object], message: str
) -> None:
    """CON-14, QWN-2, QWN-4, QWN-12"""
    fields = {name: value for name, value in {**LEAST, **changes}.items() if value is not None}
    with pytest.raises(LoadError, match=message):
        read_hybrid(ConfigReader(fields))


def test_which_layers_have_experts() -> None:
    """Q3M-1, QWN-12"""
    config = {"mlp_only_layers": [1, 5], "decoder_sparse_step": 2}
    assert sparse_layers(ConfigReader(config), 6) == (False, False, False, True, False, False)
    none = read_experts(ConfigReader({"num_experts": 0}), "silu")
    assert none is None
    other = read_experts(
        ConfigReader({"num_local_experts": 4, "moe_intermediate_size": 3}).with_defaults(
            qwen3_moe.DEFAULTS | {"num_experts_per_tok": 2}
        ),
        "silu",
    )
    assert other is not None
    assert (other.count, other.inner) == (4, 3)


def test_what_a_config_of_qwen3_moe_leaves_out(tmp_path: Path) -> None:
    """Q3M-2, Q3M-3: 128 experts, also by their other name, 8 a token, in every layer."""
    theirs = Qwen3MoeConfig()
    assert (theirs.num_experts, qwen3_moe.EXPERTS) == (128, 128)
    for name in ("num_experts_per_tok", "decoder_sparse_step", "norm_topk_prob", "rms_norm_eps"):
        assert qwen3_moe.DEFAULTS[name] == getattr(theirs, name), name
    folder = tiny_folder(
        tmp_path, "qwen3_moe", num_experts=128, num_experts_per_tok=8, norm_topk_prob=False
    )
    wanted = logits(loaded(folder), list(range(9)))
    left_out = ("num_experts", "num_local_experts", "num_experts_per_tok", "norm_topk_prob")
    edit_config(folder, **dict.fromkeys((*left_out, "decoder_sparse_step", "rms_norm_eps"), ...))
    assert torch.equal(logits(loaded(folder), list(range(9))), wanted)
    edit_config(folder, num_local_experts=127)
    with pytest.raises(LoadError, match=r"mlp\.gate\.weight has shape \[128, 64\] .* \[127, 64\]"):
        loaded(folder)


def test_each_layer_has_the_cache_of_its_kind(tmp_path: Path) -> None:
    """CON-3, CON-11, QWN-11: the tail of a convolution of 4 is 3 rows of 2*Hk*Dk + Hv*Dv."""
    model = loaded(hybrid_folder(tmp_path))
    caches = model.new_caches(CacheOptions(context=32))
    assert [type(cache) for cache in caches] == [RecurrentCache, KVCache] * 2
    head = model.self_draft()
    assert head is not None
    assert [type(cache) for cache in head.new_caches(CacheOptions(context=32))] == [KVCache]
    with torch.inference_mode():
        model.forward(Batch.of([1, 2, 3, 4, 5], 0, model.facts.device), caches)
    recurrent = caches[0]
    assert isinstance(recurrent, RecurrentCache)
    state = recurrent.get(1, torch.float32)
    assert state.conv.shape == (1, 3, 2 * 2 * 16 + 4 * 12)
    assert state.delta.shape == (1, 4, 12, 16)
    assert state.delta.dtype == torch.float32


def test_a_shared_expert_that_the_config_does_not_know(tmp_path: Path) -> None:
    """CON-14, QWN-12: leaving it out would change the numbers."""
    folder = tiny_folder(tmp_path, "qwen3_5_moe")
    edit_config(folder, shared_expert_intermediate_size=...)
    with pytest.raises(LoadError, match=r"config\.json no shared_expert_intermediate_size"):
        loaded(folder)


# --- towers


def test_a_tower_is_skipped_and_images_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """QWN-14, CON-6: text works, no tensor of the tower is warned of, and there is no interface."""
    model = loaded(wrapped_folder(tmp_path))
    assert not [record for record in caplog.records if record.name.startswith("forerun")]
    assert not isinstance(model, MediaModel)
    image = MediaItem(0, 1, torch.zeros(1, 64), causal=True)
    with pytest.raises(AssertionError, match="text only"):
        model.forward(Batch.of([1, 2], 0, model.facts.device, media=[image]), None)


@pytest.mark.parametrize("root", ["vision_tower.", "model.visual.", "visual."])
def test_a_tower_is_looked_for_under_three_roots(tmp_path: Path, root: str) -> None:
    """QWN-14"""
    folder = hybrid_folder(tmp_path)
    edit_tensors(folder, lambda tensors: tensors | {f"{root}patch_embed.x": torch.zeros(2)})
    with pytest.raises(LoadError, match=rf"has {root}patch_embed\.x and config\.json no vision_c"):
        loaded(folder)
    edit_config(folder, vision_config={"depth": 1})
    loaded(folder)


def test_half_a_tower_is_an_error(tmp_path: Path) -> None:
    """QWN-14: a config without tensors, and features that are handed to layers in between."""
    folder = wrapped_folder(tmp_path)

    def without(tensors: Tensors) -> Tensors:
        return {name: tensor for name, tensor in tensors.items() if "visual" not in name}

    vision = read_config(folder)["vision_config"]
    assert isinstance(vision, dict)
    edit_config(folder, vision_config=vision | {"deepstack_visual_indexes": [8]})
    with pytest.raises(LoadError, match=r"vision_config\.deepstack_visual_indexes"):
        loaded(folder)
    edit_config(folder, vision_config=vision | {"deepstack_visual_indexes": []})
    loaded(folder)
    edit_tensors(folder, without)
    with pytest.raises(LoadError, match="has a vision_config and the checkpoint no tensor under"):
        loaded(folder)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_moe"])
def test_a_load_without_memory_finds_every_tensor(tmp_path: Path, family) -> None:
    """LOD-1: on the meta device, as an import checks a checkpoint."""
    folder = hybrid_folder(tmp_path, family, mtp=family != "qwen3_moe")
    files = [folder / "model.safetensors"]
    placement = Placement(torch.bfloat16, torch.device("meta"))
    model = load_model(read_config(folder), files, placement)
    assert (model.self_draft() is not None) == (family != "qwen3_moe")
    edit_tensors(folder, lambda found: {n: t for n, t in found.items() if "k_norm" not in n})
    with pytest.raises(LoadError, match="k_norm"):
        load_model(read_config(folder), files, placement)
