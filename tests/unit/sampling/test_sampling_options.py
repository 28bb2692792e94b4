"""What a request asks of the sampler: fields, defaults, layers, normalisation (04 OPT)."""

from dataclasses import fields, replace

import pytest

from forerun.base.errors import RequestError
from forerun.base.options import check_options
from forerun.sampling.options import SamplingOptions

NEUTRAL = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def normalised(**options):
    return SamplingOptions(**options).normalised(vocab_size=100, context_length=512)


def test_the_fields_are_those_of_the_rule():
    """04 OPT-1."""
    assert {field.name for field in fields(SamplingOptions)} == {
        *("temperature", "top_k", "top_p", "min_p", "repeat_last_n", "repeat_penalty"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "seed", "draft"),
        *("logprobs", "top_logprobs"),
    }


@pytest.mark.parametrize("made", [SamplingOptions(), SamplingOptions.from_layers({}, {})])
def test_a_request_without_options_has_the_servers_defaults(made):
    """04 OPT-2, OPT-3, F10: no penalty that nobody asked for, so no history either."""
    assert (made.temperature, made.top_k, made.top_p, made.min_p) == (0.8, 40, 0.9, 0.0)
    assert (made.repeat_last_n, made.repeat_penalty) == (64, 1.0)
    assert (made.presence_penalty, made.frequency_penalty, made.seed) == (0.0, 0.0, -1)
    assert (made.logit_bias, made.draft, made.logprobs) == ((), "auto", False)
    assert not made.seeded
    assert made.normalised(vocab_size=9, context_length=9).repeat_last_n == 0


@pytest.mark.parametrize(("seed", "seeded"), [(-7, False), (-1, False), (0, True), (5, True)])
def test_a_seed_of_zero_or_more_makes_a_request_seeded(seed, seeded):
    """04 OPT-1, OPT-5."""
    assert SamplingOptions(seed=seed).seeded == seeded
    assert normalised(seed=seed).seeded == seeded


def test_the_request_wins_over_the_model_and_the_model_over_the_defaults():
    """04 OPT-4."""
    model = check_options({"temperature": 0.3, "top_k": 7, "repeat_penalty": 1.05, "stop": ["x"]})
    request = check_options({"top_k": 9, "logit_bias": {"5": -1}, "draft": "off", "seed": 3})
    made = SamplingOptions.from_layers(model, request, logprobs=True, top_logprobs=2)
    assert made == SamplingOptions(
        temperature=0.3,
        top_k=9,
        repeat_penalty=1.05,
        logit_bias=((5, -1.0),),
        seed=3,
        draft="off",
        logprobs=True,
        top_logprobs=2,
    )


@pytest.mark.parametrize(
    ("given", "name", "want"),
    [
        ({"repeat_penalty": 0.0, "presence_penalty": 1.0}, "repeat_penalty", 1.0),
        ({"repeat_last_n": -1, "repeat_penalty": 1.1}, "repeat_last_n", 512),
        ({"repeat_last_n": 10**15, "repeat_penalty": 1.1}, "repeat_last_n", 512),
        ({"repeat_last_n": 64, "repeat_penalty": 1.1}, "repeat_last_n", 64),
        ({"repeat_last_n": 64, "frequency_penalty": 0.1}, "repeat_last_n", 64),
        ({"repeat_last_n": 64, "presence_penalty": -0.1}, "repeat_last_n", 64),
        ({"repeat_last_n": 64}, "repeat_last_n", 0),
        ({"repeat_last_n": -1, "repeat_penalty": 0.0}, "repeat_last_n", 0),
        ({"temperature": 9e-6}, "temperature", 0.0),
        ({"temperature": 1e-5}, "temperature", 1e-5),
        ({"seed": -9}, "seed", -1),
    ],
)
def test_normalising_resolves_special_values(given, name, want):
    """04 OPT-5, F8."""
    assert getattr(normalised(**given), name) == want


def test_a_history_of_nothing_switches_every_penalty_off():
    """04 OPT-5, F8."""
    off = normalised(
        repeat_last_n=0, repeat_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5
    )
    assert not off.penalised
    assert {name: getattr(off, name) for name in NEUTRAL} == NEUTRAL


def test_normalising_twice_changes_nothing():
    """04 OPT-5: a request may be normalised where it is prepared and again by the sampler."""
    once = normalised(repeat_last_n=-1, repeat_penalty=1.1, temperature=1e-7, seed=-4)
    assert once.normalised(vocab_size=100, context_length=512) == once


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, float("nan"), float("inf"))),
        *(("top_p", value) for value in (-0.1, 1.1, float("nan"))),
        ("min_p", 1.5),
        ("top_k", -1),
        ("repeat_last_n", -2),
        ("repeat_penalty", float("inf")),
        ("presence_penalty", 2.5),
        ("frequency_penalty", float("nan")),
        ("seed", 2**63),
        ("top_logprobs", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    """04 OPT-5."""
    with pytest.raises(RequestError) as refused:
        SamplingOptions(**{name: value})
    assert name in str(refused.value)
    assert str(value) in str(refused.value)


@pytest.mark.parametrize("amount", [100.5, -101.0, float("nan"), float("inf")])
def test_a_bias_out_of_range_is_refused(amount):
    """04 OPT-6."""
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingOptions(logit_bias=((3, amount),))


def test_a_bias_may_name_1024_tokens_of_the_vocabulary_and_no_others():
    """04 OPT-6."""
    entries = tuple((token, 1.0) for token in range(1025))
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingOptions(logit_bias=entries)
    most = SamplingOptions(logit_bias=entries[:1024])
    assert most.normalised(vocab_size=1024, context_length=8).logit_bias == entries[:1024]
    with pytest.raises(RequestError, match=r"token 1023; this model's tokens are 0 to 1022"):
        most.normalised(vocab_size=1023, context_length=8)
    with pytest.raises(RequestError, match="logit_bias"):
        SamplingOptions(logit_bias=((-1, 1.0),))


def test_bias_keys_may_be_strings_of_digits():
    """04 OPT-6."""
    made = SamplingOptions.from_layers({"logit_bias": {"12": -100, 3: 1}})
    assert made.logit_bias == ((12, -100.0), (3, 1.0))


def test_an_unknown_option_is_an_error_inside_the_program():
    """04 OPT-7."""
    with pytest.raises(TypeError):
        SamplingOptions(mirostat=2)
    with pytest.raises(RequestError, match="mirostat"):
        SamplingOptions.from_layers({"mirostat": 2})


def test_a_recipe_forgets_what_does_not_shape_a_distribution():
    """BAT-2: slots that differ only in these share one pass."""
    one = normalised(seed=1, logprobs=True, top_logprobs=3, draft="off")
    assert one.recipe() == normalised(seed=2).recipe()
    assert one.recipe() != replace(one, top_k=3).recipe()
