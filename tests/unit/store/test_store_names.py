"""Names of models (07 CAT-1, CFG-3, T12)."""

from pathlib import Path

import pytest

from forerun.base.errors import RequestError, UnsupportedError
from forerun.store.names import ModelName


@pytest.mark.parametrize(
    ("text", "parts", "short"),
    [
        ("smollm2", ("forerun", "library", "smollm2", "latest"), "smollm2:latest"),
        ("smollm2:135m", ("forerun", "library", "smollm2", "135m"), "smollm2:135m"),
        ("me/tuned", ("forerun", "me", "tuned", "latest"), "me/tuned:latest"),
        ("forerun/library/a:b", ("forerun", "library", "a", "b"), "a:b"),
        ("Forerun/me/a:b", ("forerun", "me", "a", "b"), "me/a:b"),
        ("hf.co/Org/Name-1.5", ("hf.co", "Org", "Name-1.5", "latest"), "hf.co/Org/Name-1.5:latest"),
        ("huggingface.co/o/n:v2", ("hf.co", "o", "n", "v2"), "hf.co/o/n:v2"),
        ("forerun/a.b/c", ("forerun", "a.b", "c", "latest"), "forerun/a.b/c:latest"),
    ],
)
def test_a_name_is_filled_in_with_the_defaults(
    text: str, parts: tuple[str, ...], short: str
) -> None:
    """CAT-1, CFG-3."""
    name = ModelName.parse(text)
    assert (name.host, name.namespace, name.model, name.tag) == parts
    assert str(name) == short


def test_a_hub_name_is_a_repository_and_a_revision() -> None:
    """CAT-1: without a tag the newest is meant."""
    named, newest = ModelName.parse("hf.co/o/n:abc123"), ModelName.parse("hf.co/o/n")
    assert named.on_hub
    assert (named.repository, named.revision) == ("o/n", "abc123")
    assert (newest.repository, newest.revision) == ("o/n", "main")
    assert not ModelName.parse("o/n").on_hub


@pytest.mark.parametrize(
    "text",
    ["registry.ollama.ai/library/llama3", "ollama.com/llama3", "localhost:5000/a/b", "x.y/z"],
)
def test_other_hosts_are_refused_with_what_works_instead(text: str) -> None:
    """CAT-1: one sentence, and nothing is contacted."""
    with pytest.raises(UnsupportedError) as caught:
        ModelName.parse(text)
    message = str(caught.value)
    assert "hf.co/ORG/NAME" in message
    assert text.split("/")[0] in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "a:", ":b", "a/", "/a", "a//b", "a/b/c/d", "a:b:c", "a b", "ä", "a\n"),
        *("..", "../a", "a/..", "a:..", "forerun/../a", "forerun/library/..", ".a", "a:.tmp-x"),
        *("a\\b", "a\0", "C:\\x", "con", "a:NUL", "com1/a", "aux.txt", "a.", "x" * 200, "~/a"),
        *("hf.co/name", "hf.co/o/..", "hf.co/../n", "hf.co/o/n:refs/pr/1", "ftp://hf.co/o/n"),
        *("./x", "/models/x", "x.gguf", "a/model.safetensors"),
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    """T12: traversal, devices and everything that some system cannot store."""
    with pytest.raises((RequestError, UnsupportedError)):
        ModelName.parse(text)


def test_an_instance_cannot_be_made_around_the_parser(tmp_path: Path) -> None:
    """CFG-3: the check is in the type, so no path leaves the store."""
    with pytest.raises(RequestError):
        ModelName("forerun", "library", "..", "latest")
    assert ModelName.from_path(("forerun", "library", "a", ".tmp-1")) is None
    assert ModelName.from_path(("forerun", "a")) is None
    assert ModelName.from_path(("elsewhere", "a", "b", "c")) is None
    name = ModelName.parse("a/b:c")
    assert ModelName.from_path(name.path(tmp_path).relative_to(tmp_path).parts) == name


def test_an_address_from_a_browser_is_the_name_it_shows() -> None:
    for text in ("https://huggingface.co/org/name", "http://hf.co/org/name/"):
        assert ModelName.parse(text) == ModelName.parse("hf.co/org/name")


def test_a_path_is_told_how_to_become_a_model() -> None:
    for text in ("./x", "/models/x.gguf", "~/x", "x.gguf"):
        with pytest.raises(RequestError, match="`forerun create NAME`"):
            ModelName.parse(text)
