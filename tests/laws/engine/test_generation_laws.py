"""Laws of generation over a target whose answer depends on every token that its caches hold."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.toy import EOS, ListSink, ToyTarget, ask, endless, loaded_toy, tokens_in
from forerun.sampling.options import SamplingOptions

TOKENS = st.integers(0, 7)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=9)
LOOK_AHEAD = st.sampled_from([0, 1])
BUDGETS = st.integers(0, 9)


def often_ending(tokens):
    return EOS if endless(tokens) % 5 == 0 else endless(tokens)


def fresh(prompt, budget, **options):
    return ask(loaded_toy(ToyTarget(often_ending)), prompt, budget, **options)


@given(prompt=PROMPTS, budget=BUDGETS, chunk=st.integers(1, 10), look_ahead=LOOK_AHEAD)
def test_chunked_prefill_answers_as_one_forward_does(prompt, budget, chunk, look_ahead):
    """PRE-1, and the decoder's look-ahead changes no token (DEC-7)."""
    loaded = loaded_toy(ToyTarget(often_ending), chunk=chunk, look_ahead=look_ahead)
    sink = ask(loaded, prompt, budget)
    whole = fresh(prompt, budget)
    assert (sink.tokens, sink.reason) == (whole.tokens, whole.reason)
    assert sink.figures.generated_tokens == len(sink.tokens) <= budget


@settings(max_examples=120)
@given(
    requests=st.lists(
        st.tuples(PROMPTS, BUDGETS, st.none() | st.integers(0, 12)), min_size=2, max_size=5
    ),
    chunk=st.integers(1, 4),
    look_ahead=LOOK_AHEAD,
    follow=st.booleans(),
)
def test_a_warm_answer_equals_a_cold_one_whatever_came_before(requests, chunk, look_ahead, follow):
    """REQ-3, THR-2: also after requests that were cancelled at any call of their sink."""
    loaded = loaded_toy(ToyTarget(often_ending), chunk=chunk, look_ahead=look_ahead)
    said: list[int] = []
    for prompt, budget, cancel_at in requests:
        prompt = [*said, *prompt] if follow else prompt
        sink = ask(loaded, prompt, budget, sink=ListSink(cancel_at=cancel_at))
        cold = fresh(prompt, budget)
        if sink.error is None:
            assert sink.tokens == cold.tokens
        else:
            assert sink.error.status == 499
            assert sink.tokens == cold.tokens[: len(sink.tokens)]
        assert [call for call in sink.calls if call in ("finish", "fail")] == sink.calls[-1:]
        said = [*prompt, *sink.tokens]


@given(
    prompt=PROMPTS,
    breaks_at=st.integers(0, 12),
    budget=st.integers(1, 9),
    look_ahead=LOOK_AHEAD,
)
def test_after_an_error_anywhere_the_next_answer_is_that_of_a_fresh_engine(
    prompt, breaks_at, budget, look_ahead
):
    """REQ-3: a failed request leaves the runner usable."""
    target = ToyTarget(often_ending)
    loaded = loaded_toy(target, chunk=3, look_ahead=look_ahead)
    target.fails_at = breaks_at
    sink = ListSink()
    try:
        ask(loaded, prompt, budget, sink=sink)
    except RuntimeError:
        assert sink.calls[-1] == "fail"
    target.fails_at = None
    assert ask(loaded, prompt, budget).tokens == fresh(prompt, budget).tokens


@settings(max_examples=40)
@given(
    prompt=PROMPTS,
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.7, 1.5]),
    penalty=st.sampled_from([1.0, 1.3]),
    before=PROMPTS,
    look_ahead=LOOK_AHEAD,
)
def test_the_same_seed_gives_the_same_text(prompt, seed, temperature, penalty, before, look_ahead):
    """04 SED-2 through the engine: cold or warm, at either look-ahead."""
    options = SamplingOptions(temperature=temperature, seed=seed, repeat_penalty=penalty)
    cold = ask(loaded_toy(ToyTarget(often_ending, peak=2.0)), prompt, 8, sampling=options)
    loaded = loaded_toy(ToyTarget(often_ending, peak=2.0), chunk=2, look_ahead=look_ahead)
    ask(loaded, before, 3)
    for _ in range(2):
        assert ask(loaded, prompt, 8, sampling=options).tokens == cold.tokens


@given(prompt=PROMPTS, budget=BUDGETS, cancel_at=st.integers(0, 15), look_ahead=LOOK_AHEAD)
def test_caches_never_hold_more_than_was_recorded(prompt, budget, cancel_at, look_ahead):
    """03 T7 for plain decoding: what the caches hold is a prefix of prompt and drawn tokens."""
    loaded = loaded_toy(ToyTarget(often_ending), chunk=2, look_ahead=look_ahead)
    ask(loaded, prompt, budget, sink=ListSink(cancel_at=cancel_at))
    held = tokens_in(loaded.caches[0])
    assert held == _continued(prompt, len(held))[: len(held)]
    assert tokens_in(loaded.caches[2]) == held


def _continued(prompt, length):
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(often_ending(tokens))
    return tokens
