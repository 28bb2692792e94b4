"""Where a request starts and what its end records: 02 BEG, SWI, CLO as far as one path goes."""

import pytest

from fixtures.toy import ToyCache
from forerun.base.errors import CancelledError
from forerun.prefix.session import PrefixCache


def prefix(*caches):
    return PrefixCache([None, *caches])


def run(cache, tokens, outputs=(), *, written=None):
    """A request over `cache`, which stands for a layer: evaluates all but the last token."""
    with cache.prefix.begin(tokens) as session:
        session.outputs.extend(outputs)
        sequence = [*tokens, *outputs][: written or len(tokens) + len(outputs) - 1]
        cache.tokens.extend(sequence[cache.offset :])
    return session.cached


@pytest.fixture
def layer():
    cache = ToyCache()
    cache.prefix = prefix(cache)
    return cache


def test_a_second_turn_starts_where_the_first_ended(layer):
    """CLO-4: prompt and reply are recorded; the reply's last token was never evaluated."""
    assert run(layer, [1, 2, 3], [7, 8]) == 0
    assert run(layer, [1, 2, 3, 7, 8, 4], [9]) == 4


def test_an_exact_repeat_evaluates_one_token(layer):
    """02 BEG-2, PRE-7: the token kept back seeds decoding."""
    run(layer, [1, 2, 3], [7])
    assert run(layer, [1, 2, 3], [7]) == 2


def test_a_request_that_differs_keeps_what_it_shares(layer):
    run(layer, [1, 2, 3, 4], [7])
    assert run(layer, [1, 2, 9, 4], [7]) == 2
    assert layer.tokens[:3] == [1, 2, 9]


def test_one_layer_that_cannot_rewind_empties_all():
    """02 SWI-5: layers never rest at different offsets."""
    rewinding, stubborn = ToyCache(), ToyCache(rewinds=False)
    both = prefix(rewinding, stubborn)
    with both.begin([1, 2, 3]):
        for cache in (rewinding, stubborn):
            cache.tokens.extend([1, 2])
    with both.begin([1, 9, 3]) as session:
        assert session.cached == 0
        assert rewinding.offset == stubborn.offset == 0


def test_a_layer_that_cannot_rewind_still_serves_a_request_that_goes_on():
    stubborn = ToyCache(rewinds=False)
    stubborn.prefix = prefix(stubborn)
    run(stubborn, [1, 2, 3], [7, 8])
    assert run(stubborn, [1, 2, 3, 7, 8, 4]) == 4


def test_a_cancelled_prefill_is_kept(layer):
    with pytest.raises(CancelledError), layer.prefix.begin([1, 2, 3, 4]):
        layer.tokens.extend([1, 2])
        raise CancelledError("gone")
    assert run(layer, [1, 2, 3, 4]) == 2


def test_layers_at_different_offsets_are_levelled_at_the_end():
    one, other = ToyCache(), ToyCache()
    both = prefix(one, other)
    with both.begin([1, 2, 3, 4]):
        one.tokens.extend([1, 2, 3])
        other.tokens.extend([1, 2])
    assert one.tokens == other.tokens == [1, 2]


def test_an_error_leaves_nothing_behind(layer):
    """contract/model law 2: after a broken forward nobody knows what the layers hold."""
    with pytest.raises(ZeroDivisionError), layer.prefix.begin([1, 2, 3]):
        layer.tokens.extend([1, 2])
        raise ZeroDivisionError
    assert layer.offset == 0
    assert run(layer, [1, 2, 3]) == 0


def test_caches_ahead_of_the_record_are_a_broken_invariant(layer):
    """02 CLO-3. What was held before is not believed afterwards."""
    run(layer, [5, 6, 7])
    with pytest.raises(AssertionError), layer.prefix.begin([1, 2]):
        layer.tokens.extend([1, 2, 3])
    assert run(layer, [5, 6, 7]) == 0


def test_a_model_without_caches_evaluates_everything():
    none = prefix()
    for _ in range(2):
        with none.begin([1, 2]) as session:
            assert session.cached == 0


def test_stateless_layers_take_no_part(layer):
    """CTR-2: their None never counts, neither for what can rewind nor for the lowest offset."""
    assert run(layer, [1, 2, 3], [7, 8]) == 0
    stateless = PrefixCache([None, None])
    with stateless.begin([1, 2]) as session:
        assert session.cached == 0
    with stateless.begin([1, 2]) as session:
        assert session.cached == 0  # nothing is held, so nothing can be reused
    with PrefixCache([layer, None]).begin([1, 2, 3, 7, 9]) as session:
        assert session.cached == 0  # a new prefix cache knows nothing of what a layer holds
        assert layer.offset == 0
