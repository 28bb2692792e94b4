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
