"""No text leads out of the store (07 CFG-3, T12): arbitrary names, digests and shard names."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.base.errors import RequestError, UnsupportedError
from forerun.store.blobs import Blobs, Digest
from forerun.store.names import ModelName

ROOT = Path("/root/of/manifests")
# Pieces that names are made of and attacks are made of, so that they meet often.
PIECES = st.sampled_from(
    [
        *("a", "B", "7", "_", "-", ".", "..", "/", "\\", ":", "~", "\0", "\n", " ", "é", "%2e"),
        *("hf.co", "huggingface.co", "forerun", "library", "con", "latest", ".tmp-", "x.y"),
    ]
)
NAMES = st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=20)


def _parsed(text: str) -> ModelName | None:
    try:
        return ModelName.parse(text)
    except (RequestError, UnsupportedError):
        return None


@settings(max_examples=500)
@given(text=NAMES)
def test_a_name_lies_four_folders_deep_in_the_store_or_is_refused(text: str) -> None:
    """CFG-3: and no part of its path is a special name on any system."""
    name = _parsed(text)
    if name is None:
        return
    path = name.path(ROOT)
    assert path.parent.parent.parent.parent == ROOT
    for part in path.relative_to(ROOT).parts:
        assert part.isascii()
        assert not set(part) & set('/\\:*?"<>|\0\n ~')
        assert not part.startswith(".")
        assert not part.endswith(".")
        assert part.split(".")[0].lower() not in {"con", "nul", "aux", "prn"}


@settings(max_examples=500)
@given(text=NAMES)
def test_what_a_name_is_shown_as_is_the_same_name(text: str) -> None:
    """CAT-1: `list` prints what `run` accepts, and the manifest's path gives the name back."""
    name = _parsed(text)
    if name is None:
        return
    assert ModelName.parse(str(name)) == name
    assert ModelName.from_path(name.path(ROOT).relative_to(ROOT).parts) == name


@given(parts=st.lists(st.sampled_from(["a", "hf.co", "forerun", "..", "", "/", "b/c"]), max_size=5))
def test_paths_that_no_name_has_are_nobodys(parts: list[str]) -> None:
    """CFG-3."""
    name = ModelName.from_path(parts)
    assert name is None or list(name.path(ROOT).relative_to(ROOT).parts) == parts


HEX = "0123456789abcdef"
DIGESTS = st.text(alphabet=HEX + "ABG/.:-\n", min_size=0, max_size=8).flatmap(
    lambda noise: st.sampled_from([noise, "sha256:" + noise, "sha256:" + "0" * 60 + noise])
)


@settings(max_examples=300)
@given(text=DIGESTS | st.text(alphabet=HEX, min_size=64, max_size=64).map("sha256:".__add__))
def test_a_digest_is_one_file_in_the_blobs_or_is_refused(text: str) -> None:
    """CFG-3."""
    try:
        digest = Digest.parse(text)
    except RequestError:
        with pytest.raises(RequestError):
            Digest(text.removeprefix("sha256:") + "/")
        return
    assert Blobs(ROOT).path(digest).parent == ROOT
    assert Digest.parse(str(digest)) == digest
    assert len(digest.file_name) == 71
