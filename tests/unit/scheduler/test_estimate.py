"""What a model needs, from its config alone: 08 FIT-1, SCH-7, G09."""

import os

import pytest

from fixtures.qwen import hybrid_folder, wrapped_folder
from fixtures.smollm2 import NAME, models_folder, smollm2
from fixtures.tiny import stored_at, tiny_store
from fixtures.toy import ask
from forerun.base.units import GIB
from forerun.cache.recurrent import RecurrentCache
from forerun.engine.memory import cache_bytes
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.runner.loading import load_here
from forerun.runner.request import LoadRequest
from forerun.scheduler.estimate import (
    ModelFacts,
    choose_context,
    estimate,
    read_facts,
    read_shape,
)
from forerun.store.names import ModelName
from forerun.store.store import Store

SMALL = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 264,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}

# Layers with 2 key heads of 16 and 4 value heads of 12, and what they and those of attention keep.
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
KV = 2 * 2 * 24 * 2 * 1000
STATE = 2 * 4 * (4 * 12 * 16 + (3 + 16) * 112 + 16 * (2 * 16 + 4 * 12 + 2 * 4))


def caches(config, context):
    return estimate(read_shape(config), 0, context=context, chunk=512).caches


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2 * 2 * 2 * 24 * 2 * 1000),
        ({"dtype": "float32"}, 2 * 2 * 2 * 24 * 4 * 1000),
        ({"dtype": None, "torch_dtype": "float32"}, 2 * 2 * 2 * 24 * 4 * 1000),
        ({"num_key_value_heads": None}, 2 * 2 * 4 * 24 * 2 * 1000),
        ({"head_dim": None}, 2 * 2 * 2 * 16 * 2 * 1000),
        ({"sliding_window": 10}, 2 * 2 * 2 * 24 * 2 * 1000),  # which layers slide is not said
        (
            {"sliding_window": 10, "layer_types": ["sliding_attention", "full_attention"]},
            2 * 2 * 24 * 2 * (1000 + 10 + 512),
        ),
        ({"sliding_window": 10, "sliding_window_pattern": 2}, 2 * 2 * 24 * 2 * (1000 + 522)),
        ({"sliding_window": 10, "model_type": "gemma3_text"}, 2 * 2 * 24 * 2 * 2 * 522),
        (
            {"sliding_window": 10, "use_sliding_window": False, "sliding_window_pattern": 2},
            2 * 2 * 2 * 24 * 2 * 1000,
        ),
        ({"layer_types": ["a", "kind"], "sliding_window": 10}, 2 * 2 * 2 * 24 * 2 * 1000),
        ({"layer_types": ["linear_attention", "full_attention"], **DELTA}, KV + STATE),
        ({"full_attention_interval": 2, **DELTA}, KV + STATE),
        ({"num_hidden_layers": 8, **DELTA}, 2 * KV + 6 * STATE),
        (
            {"layer_types": ["linear_attention"], **DELTA},
            KV + STATE,
        ),  # of the other, nothing is said
    ],
)
def test_caches_are_keys_and_values_of_every_layer(changes, expected):
    """08 FIT-1: full layers hold the context, sliding ones window + slack as they allocate it,
    recurrent ones two states and the rows of a round with each, whatever the context."""
    assert caches({**SMALL, **changes}, 1000) == expected


def test_a_nested_config_counts_before_the_outer_one():
    """08 FIT-1: models with a vision tower keep the language model's fields in `text_config`."""
    nested = {"hidden_size": 1, "text_config": SMALL, "num_hidden_layers": 99}
    assert read_shape(nested) == read_shape(SMALL)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": "two", "hidden_size": None, "vocab_size": [], "head_dim": -1},
        {"hidden_size": True, "num_attention_heads": 0, "sliding_window": "x", "layer_types": 7},
        {"text_config": "none", "dtype": ["float32"], "num_hidden_layers": 1e300},
        {"num_hidden_layers": 10**15},
    ],
)
def test_a_config_that_says_nothing_useful_is_guessed_upwards(config):
    """08 FIT-1: never a crash, and no less than a common model of some billions needs."""
    need = estimate(read_shape(config), 5, context=8192, chunk=512)
    assert need.caches >= 2**30
    assert need.total == need.weights + need.caches + need.activations


def test_the_need_covers_the_whole_span():
    """G09: the last chunk attends over what is cached as well; a prompt's length is nothing."""
    shape = read_shape(SMALL)
    short, long = (estimate(shape, 0, context=n, chunk=512) for n in (1024, 4096))
    assert long.caches == 4 * short.caches
    assert long.activations - short.activations == 512 * (4096 - 1024) * 2


def test_a_chunk_is_no_longer_than_the_context():
    shape = read_shape(SMALL)
    assert estimate(shape, 0, context=16, chunk=512) == estimate(shape, 0, context=16, chunk=16)


@pytest.mark.parametrize(
    ("asked", "parameter", "stated", "gpu", "expected"),
    [
        (None, None, None, None, 8192),
        (None, None, None, 80 * GIB, 262144),
        (None, None, None, 47 * GIB, 262144),
        (None, None, None, 24 * GIB, 32768),
        (None, None, None, 8 * GIB, 4096),
        (None, None, 1000, 80 * GIB, 1000),
        (None, 2000, 1000, None, 2000),
        (3000, 2000, 1000, None, 3000),
        (1, None, None, None, 4),
    ],
)
def test_the_context_is_what_was_asked_else_by_device(asked, parameter, stated, gpu, expected):
    """08 SCH-7: asked, the model's own parameter, the environment, the device."""
    shape = read_shape({**SMALL, "max_position_embeddings": None})
    assert choose_context(ModelFacts(shape, 0, 0, parameter, None), asked, stated, gpu) == expected


def test_the_context_is_never_above_the_models_maximum():
    """08 SCH-7."""
    facts = ModelFacts(read_shape(SMALL), 0, 0, None, None)
    assert choose_context(facts, 100_000, None, None) == 512
    assert choose_context(facts, None, None, 80 * GIB) == 512


def buffers(cache):
    if isinstance(cache, RecurrentCache):
        return cache.nbytes()
    return cache._rows.keys.nbytes + cache._rows.values.nbytes


def full_caches(request):
    """Bytes of weights and of caches, whole buffers, of a loaded model that has filled them."""
    service = load_here(request)
    try:
        engine = service.served.engine
        ask(engine, [7] * (engine.context - 8), 8)
        assert max(cache.offset for cache in engine.caches) >= engine.context - 8
        held = sum(map(buffers, (*engine.caches, *engine.drafters.caches)))
        assert cache_bytes(engine) <= held
        return engine.model.facts.weight_bytes, held
    finally:
        service.close()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_the_estimate_holds_what_a_real_model_takes(tmp_path, family):
    """08 FIT-1: weights and full caches, and not much more."""
    facts = read_facts(tiny_store(tmp_path, family).get(ModelName.parse("tiny")))
    assert facts.repacked == 0  # nothing in it is quantised
    need = estimate(facts.shape, facts.weights, context=512, chunk=512)
    weights, held = full_caches(LoadRequest("tiny", tmp_path, num_ctx=512, threads=1))
    assert need.caches == held
    assert weights <= need.weights <= 2 * weights


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_the_estimate_holds_what_a_hybrid_takes(tmp_path, family):
    """08 FIT-1, QWN-11: with its own head, which has a layer of keys and values."""
    checkpoint = hybrid_folder(tmp_path / "checkpoint", family)
    stored = stored_at(tmp_path / "store", checkpoint)
    facts = read_facts(stored.get(ModelName.parse("tiny")))
    assert facts.draft is not None
    need = estimate(facts.shape, facts.weights, context=512, chunk=512, draft=facts.draft)
    weights, held = full_caches(LoadRequest("tiny", tmp_path / "store", num_ctx=512, threads=1))
    assert held <= need.caches <= 1.2 * held
    assert weights <= need.weights <= 2 * weights


def test_a_tower_that_is_not_loaded_is_not_counted(tmp_path):
    """08 FIT-1, QWN-14."""
    stored = stored_at(tmp_path / "store", wrapped_folder(tmp_path / "checkpoint"))
    model = stored.get(ModelName.parse("tiny"))
    tower = [layer.blob.size for layer in model.tensors if "visual" in layer.name]
    assert sum(tower) > 0
    whole = sum(layer.blob.size for layer in model.tensors)
    assert read_facts(model).weights == whole - sum(tower)


@pytest.mark.parametrize("drafts", [False, True])
def test_a_head_beside_another_draft_is_not_counted(tmp_path, drafts):
    """08 FIT-1, CON-5: nor that of a draft which is a model with a head."""
    target = hybrid_folder(tmp_path / "checkpoint")
    store = Store(tmp_path / "store")
    small = hybrid_folder(tmp_path / "small", seed=5)
    text = f"FROM {target}\n" + (f"DRAFT {small}\n" if drafts else "")
    with open(os.devnull, "wb") as unheard:
        request = CreateRequest(name="tiny", modelfile=text, folder=str(tmp_path))
        create(request, store, Reporter(unheard.fileno()))
    model = store.get(ModelName.parse("tiny"))
    heads = [layer.blob.size for layer in model.tensors if "mtp." in layer.name]
    whole = sum(layer.blob.size for layer in model.tensors)
    assert sum(heads) > 0
    assert read_facts(model).weights == whole - (sum(heads) if drafts else 0)


@pytest.mark.model
def test_the_estimate_holds_what_smollm2_takes():
    """08 FIT-1, with all that is estimated, its draft's too: within a factor of two."""
    facts = read_facts(smollm2())
    weights = facts.weights + facts.repacked
    need = estimate(facts.shape, weights, context=1024, chunk=512, draft=facts.draft)
    request = LoadRequest(str(NAME), models_folder(), num_ctx=1024, threads=1)
    weights, held = full_caches(request)
    assert need.caches == held
    assert weights + held <= need.total <= 2 * (weights + held)
