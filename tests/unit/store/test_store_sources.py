"""What FROM and DRAFT stand for (07 MF-4, MF-8)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.base.errors import RequestError, UnsupportedError
from forerun.store.manifest import Manifest
from forerun.store.names import ModelName
from forerun.store.sources import FolderSource, GgufSource, ModelSource, draft_folder, recognise
from forerun.store.store import Store


def _model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"")
    return path


def test_a_folder_and_a_gguf_file_are_found_beside_the_modelfile(
    store: Store, tmp_path: Path
) -> None:
    """MF-8, MF-4: relative paths start at the Modelfile, whatever the working folder is."""
    folder = _model_folder(tmp_path / "models" / "tiny")
    gguf = tmp_path / "tiny.bin"
    gguf.write_bytes(b"GGUF\x03\0\0\0")
    base = tmp_path / "models"
    assert recognise("tiny", base, store) == FolderSource(folder)
    assert recognise("./tiny", base, store) == FolderSource(base / "tiny")
    assert recognise(str(folder), Path("/"), store) == FolderSource(folder)
    assert recognise("../tiny.bin", base, store) == GgufSource(base / "../tiny.bin")


def test_a_name_is_looked_up_in_the_store_then_in_the_catalogue(
    store: Store, put: Callable[..., Manifest], tmp_path: Path
) -> None:
    """MF-8, CAT-1."""
    put("mine")
    assert recognise("mine", tmp_path, store) == ModelSource(ModelName.parse("mine"), True)
    catalogued = ModelName.parse("smollm2:135m")
    assert recognise("smollm2:135m", tmp_path, store) == ModelSource(catalogued, False)
    put("smollm2:135m")
    assert recognise("smollm2:135m", tmp_path, store) == ModelSource(catalogued, True)
    hub = ModelName.parse("hf.co/o/n")
    assert recognise("hf.co/o/n", tmp_path, store) == ModelSource(hub, False)


def test_a_folder_that_is_a_model_wins_over_a_name_and_any_other_does_not(
    store: Store, put: Callable[..., Manifest], tmp_path: Path
) -> None:
    """MF-8."""
    put("mine")
    (tmp_path / "mine").mkdir()
    assert recognise("mine", tmp_path, store) == ModelSource(ModelName.parse("mine"), True)
    (tmp_path / "mine").rmdir()
    folder = _model_folder(tmp_path / "mine")
    assert recognise("mine", tmp_path, store) == FolderSource(folder)


@pytest.mark.parametrize(
    "text",
    [
        "empty",
        "no-config",
        "no-weights",
        "text.gguf",
        "a.b/c",
    ],
)
def test_anything_else_is_not_a_supported_model_directory(
    store: Store, tmp_path: Path, text: str
) -> None:
    """MF-8."""
    (tmp_path / "empty").mkdir()
    (_model_folder(tmp_path / "no-config") / "config.json").unlink()
    (_model_folder(tmp_path / "no-weights") / "model.safetensors").unlink()
    (tmp_path / "a.b" / "c").mkdir(parents=True)
    (tmp_path / "text.gguf").write_bytes(b"GGU")
    with pytest.raises(RequestError, match="not a supported model directory"):
        recognise(text, tmp_path, store)


@pytest.mark.parametrize("text", ["absent", "./absent", "/absent", "a b"])
def test_a_path_that_is_not_there_says_so(store: Store, tmp_path: Path, text: str) -> None:
    """MF-8: and names the whole path, since relative ones start at the Modelfile."""
    with pytest.raises(RequestError, match=rf"there is no .*{text.strip('./')} and no model"):
        recognise(text, tmp_path, store)


def test_another_host_is_refused_as_such(store: Store, tmp_path: Path) -> None:
    """CAT-1."""
    with pytest.raises(UnsupportedError, match=r"not from 'registry\.ollama\.ai'"):
        recognise("registry.ollama.ai/library/llama3", tmp_path, store)


def test_a_draft_is_a_folder(tmp_path: Path) -> None:
    """MF-4: nothing but a local folder of safetensors, against the Modelfile."""
    folder = _model_folder(tmp_path / "head")
    assert draft_folder("head", tmp_path) == folder
    for text in ("absent", "hf.co/o/n", "."):
        with pytest.raises(RequestError, match=r"DRAFT .* must be a folder"):
            draft_folder(text, tmp_path)
