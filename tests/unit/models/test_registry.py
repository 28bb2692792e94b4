"""Architectures by name: one list, no duplicates, clear refusals (CON-7, CON-13)."""

import pytest

from forerun.base.errors import LoadError
from forerun.models import llama
from forerun.models.config import ConfigReader
from forerun.models.registry import REGISTRY, Family, by_architecture, find


def test_an_architecture_is_registered_once() -> None:
    """CON-7"""
    with pytest.raises(ValueError, match="LlamaForCausalLM is registered twice"):
        by_architecture([Family(("LlamaForCausalLM",), llama.build)] * 2)


def test_the_first_entry_of_architectures_decides() -> None:
    """CON-7, CON-13, LOD-1"""
    config = ConfigReader({"architectures": ["LlamaForCausalLM", "Foo"]})
    assert find(config) is llama.build


def test_an_unknown_architecture_is_named_beside_the_known_ones() -> None:
    """LOD-1 (F13)"""
    with pytest.raises(LoadError, match="architecture Foo is not supported") as raised:
        find(ConfigReader({"architectures": ["Foo"]}))
    for architecture in REGISTRY:
        assert architecture in str(raised.value)


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": None}])
def test_a_config_without_architecture_is_refused(config: dict[str, object]) -> None:
    """LOD-1"""
    with pytest.raises(LoadError, match="names no architecture"):
        find(ConfigReader(config))
