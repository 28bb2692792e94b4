"""Laws of what is decided before a load: 08 FIT-1, FIT-3, SCH-3."""

import math

from hypothesis import given
from hypothesis import strategies as st

from forerun.scheduler.estimate import estimate, read_shape
from forerun.scheduler.eviction import Candidate, choose
from forerun.scheduler.placement import Room, decide

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70_000),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.sampled_from(["sliding_attention", "full_attention", 7]), max_size=4),
)
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
            *("hidden_size", "intermediate_size", "vocab_size", "dtype", "torch_dtype"),
            *("sliding_window", "sliding_window_pattern", "use_sliding_window", "layer_types"),
            *("max_position_embeddings", "model_type"),
        ]
    ),
    VALUES,
)
CONFIGS = st.builds(lambda outer, inner: {**outer, "text_config": inner}, FIELDS, FIELDS | VALUES)
BYTES = st.integers(0, 100)


@given(config=CONFIGS, context=st.integers(4, 1000), more=st.integers(0, 1000))
def test_every_config_has_an_estimate_that_grows_with_the_context(config, context, more):
    """FIT-1: whatever a config says or leaves out."""
    shape = read_shape(config)
    less, larger = (estimate(shape, 1, context=n, chunk=512) for n in (context, context + more))
    assert 0 < less.caches <= larger.caches
    assert 0 < less.activations <= larger.activations


@given(
    need=BYTES,
    more=BYTES,
    room=st.builds(
        Room,
        free=st.none() | BYTES,
        total=st.none() | BYTES,
        overhead=BYTES,
        promised=BYTES,
        residents=st.integers(0, 2),
        system_free=st.none() | BYTES,
    ),
)
def test_a_larger_need_never_fits_better(need, more, room):
    """FIT-3: and nobody is evicted where nobody is."""
    order = ("fits", "evict", "refuse")
    verdict = decide(need, room)
    assert order.index(verdict) <= order.index(decide(need + more, room))
    assert verdict != "evict" or room.residents


@given(
    st.lists(
        st.builds(
            Candidate,
            active=st.integers(0, 2),
            keep_alive_s=st.sampled_from([1.0, 300.0, math.inf]),
            idle_since=st.integers(0, 3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_busy_and_the_pinned_go_last(candidates):
    """SCH-3: nobody who is idle, or leaves sooner anyway, is spared at their cost."""
    chosen = choose((candidate, candidate) for candidate in candidates)
    for other in candidates:
        assert chosen.active <= other.active
        assert chosen.active < other.active or chosen.keep_alive_s <= other.keep_alive_s
