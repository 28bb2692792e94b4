"""Laws of the file names that a create may give (08 API-3, 07 CFG-3)."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from forerun.api.ollama.files import read_files
from forerun.base.errors import RequestError

DIGEST = f"sha256:{'0' * 64}"
NAMES = st.lists(st.sampled_from(["a", "b", "é", "..", ".", "/", "\\", "\0", ":", "~", " "])).map(
    "".join
)


@given(NAMES)
def test_a_name_is_refused_or_stays_inside_the_folder(name: str) -> None:
    """07 CFG-3: whatever it is made of, on this system and as Windows would read it."""
    try:
        files = read_files({"model.safetensors": DIGEST, "config.json": DIGEST, name: DIGEST})
    except RequestError:
        return
    assert name in files.digests
    root = Path("/store/folder")
    path = Path(os.path.normpath(root / name))
    assert path != root
    assert path.is_relative_to(root)
    assert not set("\\:\0") & set(name)


@given(st.dictionaries(NAMES, st.just(DIGEST), max_size=5))
def test_accepted_names_can_lie_side_by_side(names: dict[str, str]) -> None:
    """08 API-3: no file is another one's folder, so that making them cannot fail."""
    given_names = {"model.safetensors": DIGEST, "config.json": DIGEST, **names}
    try:
        files = read_files(given_names)
    except RequestError:
        return
    paths = {Path(name) for name in files.digests}
    assert len(paths) == len(given_names)
    assert not any(parent in paths for path in paths for parent in path.parents)
