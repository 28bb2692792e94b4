"""Typed reading of config.json: what is wrong is named, with its value (CON-14)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.checkpoints import edit_config, loaded
from fixtures.tiny import Family, tiny_folder
from forerun.base.errors import LoadError
from forerun.models.config import ConfigReader

WRONG: list[tuple[object, Callable[[ConfigReader], object]]] = [
    ("64", lambda config: config.integer("x")),
    (True, lambda config: config.integer("x")),
    (0, lambda config: config.integer("x")),
    (2.5, lambda config: config.integer("x")),
    (-4, lambda config: config.integer("x")),
    (2**24 + 1, lambda config: config.integer("x")),
    (10**18, lambda config: config.integer("x")),
    (1e300, lambda config: config.integer("x")),
    (float("inf"), lambda config: config.integer("x")),
    (float("nan"), lambda config: config.integer("x")),
    (10**400, lambda config: config.number("x")),
    (float("inf"), lambda config: config.number("x")),
    ("1", lambda config: config.number("x")),
    (float("nan"), lambda config: config.number("x")),
    (-1.0, lambda config: config.number("x")),
    (0, lambda config: config.optional_number("x")),
    (1, lambda config: config.flag("x", False)),
    (["silu"], lambda config: config.only("x", "silu", ["silu"])),
    ("relu", lambda config: config.only("x", "silu", ["silu"])),
    ("full", lambda config: config.words("x")),
    ([1], lambda config: config.words("x")),
    (["half"], lambda config: config.only_words("x", ["full"])),
    ([], lambda config: config.section("x")),
    (True, lambda config: config.refuse("x")),
]


@pytest.mark.parametrize(("value", "read"), WRONG)
def test_a_wrong_value_is_named(value: object, read: Callable[[ConfigReader], object]) -> None:
    with pytest.raises(LoadError, match=r"config.json sets x to ") as raised:
        read(ConfigReader({"x": value}))
    assert repr(value) in str(raised.value).replace("('half',)", "['half']")
    assert "\n" not in str(raised.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(LoadError, match=r"config.json has no text_config\.hidden_size"):
        ConfigReader({"text_config": {}}).text().integer("hidden_size")


def test_null_is_absent() -> None:
    config = ConfigReader({"x": None, "text_config": {"x": None}, "y": 4.0})
    assert config.text().integer("x", 3) == 3
    assert not config.has("x")
    assert config.optional_number("x") is None
    config.refuse("x")
    assert config.integer("y") == 4  # as some writers spell whole numbers
    assert config.merged() == {"y": 4.0}


def test_the_inner_object_wins_and_the_outer_one_answers_for_it() -> None:
    config = ConfigReader({"a": 1, "b": 2, "text_config": {"a": 3}})
    text = config.text().with_defaults({"b": 8, "c": 9})
    assert [text.integer(name) for name in "abc"] == [3, 2, 9]
    assert text.merged() == {"a": 3, "b": 2, "c": 9}


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(
    "field",
    [
        "head_dim",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "vocab_size",
    ],
)
def test_a_size_that_no_model_has_is_a_load_error(
    tmp_path: Path, family: Family, field: str
) -> None:
    """CON-14: named with its value, and nothing of that size is asked for."""
    folder = tiny_folder(tmp_path, family)
    for value in (10**18, 10**400, 1e308, float("nan"), 0, -1, "x", []):
        edit_config(folder, **{field: value})
        with pytest.raises(LoadError, match=f"config.json sets {field} to ") as raised:
            loaded(folder)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("field", ["head_dim", "hidden_size", "intermediate_size"])
def test_no_memory_is_taken_for_what_the_tensors_are_not(tmp_path: Path, field: str) -> None:
    """CON-14: sizes in range whose product no memory holds."""
    folder = tiny_folder(tmp_path, "llama")
    edit_config(folder, num_attention_heads=2**22, num_key_value_heads=2**22)
    edit_config(folder, **{field: 2**24})
    with pytest.raises(LoadError, match=r"tensor model\..* has shape .* config asks for"):
        loaded(folder)


@pytest.mark.parametrize(
    ("field", "largest"),
    [("hidden_size", 2**24), ("num_hidden_layers", 10_000), ("vocab_size", 2**26)],
)
def test_sizes_have_a_largest_value(field: str, largest: int) -> None:
    assert ConfigReader({field: largest}).integer(field) == largest
    with pytest.raises(LoadError, match=f"{field} to {largest + 1}; .* from 1 to {largest}"):
        ConfigReader({field: largest + 1}).integer(field)


Change = tuple[Family, str, object, str]
CHANGES: list[Change] = [
    ("llama", "hidden_act", "relu", "hidden_act to 'relu'"),
    ("llama", "hidden_size", ..., "no hidden_size"),
    ("llama", "use_bidirectional_attention", True, "use_bidirectional_attention to True"),
    ("llama", "num_key_value_heads", 3, "num_key_value_heads 3 does not divide"),
    ("llama", "head_dim", 7, "heads are 7 wide"),
    ("llama", "rms_norm_eps", "small", "rms_norm_eps to 'small'"),
    ("llama", "tie_word_embeddings", "yes", "tie_word_embeddings to 'yes'"),
    ("qwen3", "use_sliding_window", True, "use_sliding_window to True"),
    ("qwen3", "layer_types", ["sliding_attention", "full_attention"], "layer_types"),
]


@pytest.mark.parametrize(("family", "field", "value", "message"), CHANGES)
def test_what_is_not_implemented_stops_the_load(
    tmp_path: Path, family: Family, field: str, value: object, message: str
) -> None:
    """CON-14, QW3-1: a field that would change the numbers is never ignored."""
    folder = tiny_folder(tmp_path, family)
    edit_config(folder, **{field: value})
    with pytest.raises(LoadError, match=message):
        loaded(folder)


def test_heads_must_divide_the_width_where_head_dim_is_left_out(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama")
    edit_config(folder, head_dim=..., hidden_size=66)
    with pytest.raises(LoadError, match="num_attention_heads 4 does not divide hidden_size 66"):
        loaded(folder)
