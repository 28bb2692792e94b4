"""The digest that ties a built library to its sources: of all that a build reads, and no more."""

import shutil
from pathlib import Path

import pytest

from forerun.kernels.native import sources

BUILT = {*sources.COMMON, *sources.X86_64, *sources.AARCH64}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in (*sources.FOLDER.glob("*.h"), *sources.FOLDER.glob("*.cpp")):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    return tmp_path


def test_every_header_and_unit_counts(folder: Path) -> None:
    """Those for other machines, too: a checkout has one digest."""
    read = [*folder.glob("*.h"), *(folder / name for name in BUILT)]
    found = {sources.digest()}
    for file in read:
        file.write_bytes(file.read_bytes() + b"\n")
        found.add(sources.digest())
    assert len(found) == len(read) + 1
    (folder / "new.h").touch()
    assert sources.digest() not in found


def test_what_only_tests_compile_does_not_count(folder: Path) -> None:
    before = sources.digest()
    others = [file for file in folder.glob("*.cpp") if file.name not in BUILT]
    assert {file.name for file in others} == {"native_test.cpp", "team_test.cpp"}
    for file in others:
        file.write_text("int main() {}")
    assert sources.digest() == before


@pytest.mark.parametrize("name", ["FLAGS", "LINK_FLAGS"])
def test_flags_of_all_units_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.digest()
    monkeypatch.setattr(sources, name, (*getattr(sources, name), "-g"))
    assert sources.digest() != before


@pytest.mark.parametrize("name", ["COMMON", "X86_64", "AARCH64"])
def test_flags_of_one_unit_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.digest()
    monkeypatch.setattr(sources, name, dict.fromkeys(getattr(sources, name), ("-g",)))
    assert sources.digest() != before
