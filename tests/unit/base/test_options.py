"""The table of options: types, ranges, and the text forms of Modelfiles and `/set`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.base.errors import RequestError
from forerun.base.options import OPTIONS, check_asked, check_option, check_options, parse_option

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(OPTIONS)), value=ANYTHING)
def test_any_value_is_typed_or_refused_by_name(name: str, value: object) -> None:
    """08 OPT: a wrong type, NaN or a value out of range names option, value and range."""
    try:
        checked = check_option(name, value)
    except RequestError as error:
        assert name in str(error)
        assert OPTIONS[name].allowed in str(error)
        assert "\n" not in str(error)
    else:
        assert checked is None or not isinstance(checked, float) or math.isfinite(checked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0.5"),
        ("temperature", True),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", 0.5),
        ("seed", 2**63),
        ("stop", [1]),
        ("stop", [["a"]]),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", "x" * 1001),  # a matcher's memory grows with the square of a stop's length
        ("stop", ["x"] * 65),
        ("draft", "on"),
        ("num_ctx", 3),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": math.nan}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    """04 OPT-5, 04 OPT-6: refused before any work."""
    with pytest.raises(RequestError, match=name):
        check_option(name, value)


def test_null_is_absent() -> None:
    """08 OPT: null = absent, for every option (case E13)."""
    assert check_options(dict.fromkeys(OPTIONS)) == {}


@pytest.mark.parametrize("value", ["1", "2,15,27", 5])
def test_what_belongs_in_a_modelfile_is_refused_of_a_request(value: object) -> None:
    """03 EGL-3: with where it belongs, whatever its value; null is absent there, too."""
    with pytest.raises(
        RequestError, match=r"belongs .* Modelfile, .* PARAMETER draft_layers VALUE"
    ):
        check_asked({"top_k": 3, "draft_layers": value})
    assert check_asked({"top_k": 3, "draft_layers": None}) == {"top_k": 3}
    assert check_options({"draft_layers": "2"}) == {"draft_layers": "2"}


def test_whole_floats_serve_as_integers() -> None:
    assert check_option("top_k", 40.0) == 40
    assert isinstance(check_option("top_k", 40.0), int)


def test_unknown_options_are_an_error_inside() -> None:
    """04 OPT-7: inside the program an unknown option is an error that lists the known ones."""
    with pytest.raises(RequestError, match=r"'temprature'.*temperature"):
        check_option("temprature", 1)


@pytest.mark.parametrize("value", ["1", None])
def test_only_what_one_may_set_is_offered_for_an_unknown_option(value: object) -> None:
    """To a request not what it would be refused; a Modelfile is told of all."""
    with pytest.raises(
        RequestError, match=r"'draft_layer'; the options are draft, .*num_ctx"
    ) as it:
        check_asked({"draft_layer": value})
    assert "draft_layers" not in str(it.value)
    with pytest.raises(RequestError, match=r"'draft_layer'; the options are .*draft_layers"):
        check_option("draft_layer", value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.5", 0.5),
        ("top_k", "7", 7),
        ("use_mmap", "true", True),
        ("stop", "<end>", ["<end>"]),
        ("logit_bias", "5:-100,7:1.5", {5: -100.0, 7: 1.5}),
        ("draft", "off", "off"),
        ("draft_layers", "2,15,27", "2,15,27"),
    ],
)
def test_text_forms(name: str, text: str, value: object) -> None:
    """07 MF-2: parameter values are typed by name."""
    assert parse_option(name, text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("top_k", "many"), ("temperature", "nan"), ("logit_bias", "5"), ("draft_layers", "2,-1")],
)
def test_text_of_a_wrong_type_names_the_option(name: str, text: str) -> None:
    with pytest.raises(RequestError, match=name):
        parse_option(name, text)


def test_the_default_penalty_is_none() -> None:
    """04 OPT-2, 04 OPT-3: 1.0 everywhere; 1.1 must not come from anywhere (08 T11)."""
    assert OPTIONS["repeat_penalty"].default == 1.0
    assert OPTIONS["presence_penalty"].default == OPTIONS["frequency_penalty"].default == 0.0
