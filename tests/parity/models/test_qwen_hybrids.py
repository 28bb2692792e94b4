"""The hybrid family and qwen3_moe against transformers in fp32, whole and over caches (T1).

The tolerance is the project's bar for fp32: 1e-4 of the largest logit of a position. What is left
below it is the order of float32 sums.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTopKRouter
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextTopKRouter

from fixtures.checkpoints import (
    CPU,
    chunked_logits,
    edit_config,
    loaded,
    logits,
    relative_error,
)
from fixtures.qwen import hybrid_folder, wrapped_folder, wrapped_model
from fixtures.tiny import Family, tiny_folder, tiny_model
from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.model import CacheOptions, TargetModel

TOLERANCE = 1e-4
PROMPT = 70  # more than one chunk of the scan, and than one chunk of dispatched experts

LAYERS = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
SHAPES: list[tuple[Family, int, Mapping[str, object]]] = [
    ("qwen3_5", 1, {}),
    # one value head a key head; a kernel of three; the whole head turns
    (
        "qwen3_5",
        2,
        {
            "linear_num_key_heads": 4,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": {"rope_theta": 5e4, "partial_rotary_factor": 1.0},
            "tie_word_embeddings": True,
        },
    ),
    # four value heads share a key head; hidden 80 is not heads * head_dim (F03)
    (
        "qwen3_5",
        3,
        {
            "hidden_size": 80,
            "layer_types": LAYERS,
            "linear_num_key_heads": 1,
            "num_key_value_heads": 4,
            "attention_bias": True,
        },
    ),
    ("qwen3_5_moe", 1, {}),
    ("qwen3_5_moe", 2, {"num_experts": 5, "num_experts_per_tok": 5, "layer_types": LAYERS}),
    ("qwen3_5_moe", 3, {"num_experts_per_tok": 2, "tie_word_embeddings": True}),
    ("qwen3_5_moe", 4, {"num_experts_per_tok": 1}),
    ("qwen3_next", 1, {}),
    ("qwen3_next", 2, {"mlp_only_layers": [1], "linear_num_key_heads": 4}),
    ("qwen3_next", 3, {"decoder_sparse_step": 2, "linear_num_key_heads": 1}),
    ("qwen3_next", 4, {"num_experts_per_tok": 1}),
    ("qwen3_next", 5, {"num_experts_per_tok": 1, "norm_topk_prob": False}),
    ("qwen3_next", 6, {"norm_topk_prob": False}),
    ("qwen3_moe", 1, {}),
    ("qwen3_moe", 2, {"norm_topk_prob": True, "mlp_only_layers": [0]}),
    ("qwen3_moe", 3, {"decoder_sparse_step": 2, "tie_word_embeddings": True, "num_experts": 3}),
    ("qwen3_moe", 4, {"num_experts_per_tok": 1, "norm_topk_prob": True}),
    ("qwen3_moe", 5, {"num_experts_per_tok": 1}),
]
CHUNKS = {"token by token": (1,), "uneven": (7, 1, 1, 20, 2), "past a scan": (3, 65, 2)}


def drawn(seed: int) -> list[int]:
    return torch.randint(0, 264, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()


def theirs(family: Family, seed: int, tokens: list[int], **config: object) -> Tensor:
    with torch.inference_mode():
        return tiny_model(family, seed=seed, **config)(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize(("family", "seed", "config"), SHAPES)
def test_logits_equal_transformers_of_hybrids(
    tmp_path: Path, family: Family, seed: int, config: Mapping[str, object]
) -> None:
    """T1, QWN-1, QWN-2, QWN-4, QWN-6, QWN-8, QWN-9, QWN-10, QWN-12, Q3M-1, Q3M-2, TEN-2, TEN-3,
    LIN-12, CON-1, CON-8, CON-9: whole without caches, and over caches in any chunks."""
    model = loaded(tiny_folder(tmp_path, family, seed=seed, **config))
    ids = drawn(seed)
    wanted = theirs(family, seed, ids, **config)
    assert relative_error(logits(model, ids), wanted) <= TOLERANCE
    for name, chunks in CHUNKS.items():
        assert relative_error(chunked_logits(model, ids, chunks), wanted) <= TOLERANCE, name


def test_qwen3_5_moe_obeys_a_field_that_transformers_ignores(tmp_path: Path) -> None:
    """QWN-2, QWN-12, CON-14: weights of a token's experts stay as they are where norm_topk_prob is
    false, as transformers' router of qwen3_next leaves them; its own always divides."""
    ids = drawn(6)
    model = tiny_model("qwen3_5_moe", seed=6, norm_topk_prob=False)
    routers = [
        (module, name)
        for module in model.modules()
        for name, child in module.named_children()
        if isinstance(child, Qwen3_5MoeTopKRouter)
    ]
    assert len(routers) == 4
    with torch.inference_mode():
        divided = model(torch.tensor([ids])).logits[0]
        for module, name in routers:
            router = Qwen3NextTopKRouter(model.config)
            router.load_state_dict(module.get_submodule(name).state_dict())
            module.set_submodule(name, router)
        kept = model(torch.tensor([ids])).logits[0]
    folder = tiny_folder(tmp_path, "qwen3_5_moe", seed=6, norm_topk_prob=False)
    assert relative_error(logits(loaded(folder), ids), kept) <= TOLERANCE
    for left_out_or_true in (..., True):
        edit_config(folder, norm_topk_prob=left_out_or_true)
        assert relative_error(logits(loaded(folder), ids), divided) <= TOLERANCE


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_text_part_of_a_vision_checkpoint(tmp_path: Path, family: Family) -> None:
    """T1, QWN-1, QWN-3, QWN-14 (F15): as transformers' own wrapped model writes it."""
    model, ids = loaded(wrapped_folder(tmp_path, family, seed=4)), drawn(4)
    with torch.inference_mode():
        wanted = wrapped_model(family, seed=4)(torch.tensor([ids])).logits[0]
    assert relative_error(logits(model, ids), wanted) <= TOLERANCE
    assert relative_error(chunked_logits(model, ids, (9, 30, 1)), wanted) <= TOLERANCE
    assert model.self_draft() is not None


def advance(model: TargetModel, caches: list[LayerCache | None], tokens: list[int]) -> Tensor:
    """[n, vocab] logits of the tokens that come next."""
    start = next(cache.offset for cache in caches if cache is not None)
    return model.unembed(model.forward(Batch.of(tokens, start, CPU), caches).hidden)[0]


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
@torch.inference_mode()
def test_a_snapshot_at_any_boundary_of_a_real_hybrid(tmp_path: Path, family: Family) -> None:
    """T1, QWN-11, 01 CTR-6, REC-5: taken there or captured inside a longer forward, after other
    tokens have overwritten the state."""
    model, ids, others = loaded(hybrid_folder(tmp_path, family)), drawn(0)[:13], drawn(9)
    wanted = theirs(family, 0, ids)
    caches = model.new_caches(CacheOptions(context=100, slack=16))
    live = [cache for cache in caches if cache is not None]
    assert len(live) == 4
    for boundary in range(1, len(ids) - 1):
        for cache in live:
            cache.free()
        for cache in live:
            cache.prepare_snapshots([boundary, boundary + 1])
        advance(model, caches, ids[: boundary + 2])
        captured = [cache.take_snapshots() for cache in live]
        for place, end in ((1, boundary + 1), (0, boundary)):
            advance(model, caches, others[:5])
            for cache, taken in zip(live, captured, strict=True):
                cache.restore(taken[0], boundary)
                assert cache.restore(taken[place], end)
            again = advance(model, caches, ids[end:])
            assert relative_error(again, wanted[end:]) <= TOLERANCE, (boundary, end)
