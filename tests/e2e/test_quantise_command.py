"""`forerun create --quantize`, by real processes (07 MF-6, MF-7, MF-8)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fixtures.tiny import tiny_folder
from forerun.base.errors import RequestError
from forerun.cli import create as create_command
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from unit.importer.local_hub import hub

ROOT = Path(__file__).parents[2]
NOBODY = "127.0.0.1:1"  # where no server answers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Modelfile's folder: a model, and a copy of it as its draft."""
    tiny_folder(tmp_path / "tiny", "llama")
    shutil.copytree(tmp_path / "tiny", tmp_path / "draft")
    return tmp_path


def forerun(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    own = {"FORERUN_MODELS": str(folder / "models"), "FORERUN_HOST": NOBODY, "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, "-m", "forerun", *arguments],
        env={**os.environ, **own, "COLUMNS": "100", **settings},
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )


def test_a_model_and_its_draft_are_quantised_and_shown(folder: Path) -> None:
    """MF-6, MF-7: what became of the weights is told by create, list and show; it answers."""
    (folder / "Modelfile").write_text("FROM ./tiny\nDRAFT ./draft\n")
    made = forerun(folder, "create", "small", "--quantize", "Q4", "--quantize-draft", "fp8")
    assert made.returncode == 0, made.stderr
    assert made.stderr.splitlines() == [
        *("quantising tensors", "quantising draft tensors", "created small:latest"),
    ]
    head, row = forerun(folder, "list").stdout.splitlines()
    assert row[head.index("WEIGHTS") :].startswith("int4 ")
    shown = dict(
        line.split("  ", 1) for line in forerun(folder, "show", "small").stdout.splitlines()
    )
    assert "int4 6" in shown["weights"]  # q, gate and up of two layers
    assert shown["draft weights"].strip().startswith("int8 1")
    answer = forerun(folder, "run", "small", "hi", "-o", "num_predict=2", "--verbose")
    assert answer.returncode == 0, answer.stderr


def test_a_float_model_of_the_store_is_quantised_and_one_that_is_not_float_refused(
    folder: Path,
) -> None:
    """MF-8, 07 CLS-4: one line that says what to start from."""
    (folder / "Modelfile").write_text("FROM ./tiny\n")
    assert forerun(folder, "create", "float").returncode == 0
    (folder / "again").write_text("FROM float\n")
    made = forerun(folder, "create", "small", "-f", "again", "-q", "mxfp8")
    assert made.returncode == 0, made.stderr
    store = Store(folder / "models")
    before = {layer.name: layer.blob for layer in store.get(ModelName.parse("float")).tensors}
    after = {layer.name: layer.blob for layer in store.get(ModelName.parse("small")).tensors}
    assert before.keys() == after.keys()
    assert {name for name in before if "norm" in name} < {
        n for n in before if before[n] == after[n]
    }
    (folder / "again").write_text("FROM small\n")
    refused = forerun(folder, "create", "smaller", "-f", "again", "-q", "int4")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "small:latest is mxfp8 already; create it from the float checkpoint" in refused.stderr


def test_a_repository_is_pulled_and_then_quantised(folder: Path) -> None:
    """MF-8: it stays in the store as it is, for another type of the same."""
    (folder / "Modelfile").write_text("FROM hf.co/org/name\n")
    with hub(folder / "tiny") as address:
        online = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        made = forerun(folder, "create", "small", "-q", "int8", **online)
        assert made.returncode == 0, made.stderr
    (folder / "Modelfile").write_text("FROM hf.co/org/name\n")
    again = forerun(folder, "create", "smaller", "-q", "int4")  # nothing is fetched any more
    assert again.returncode == 0, again.stderr
    store = Store(folder / "models")
    types = [store.get(entry.name).config.file_type for entry in store.entries()]
    assert sorted(types) == ["f32", "int4", "int8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quantize", "q5"], r"^quantize is 'q5'; it can be int4, int8, nvfp4, mxfp4, mxfp8$"),
        (["--quantize-draft", "int4"], r"^quantize-draft is int4, .* no DRAFT"),
        (["--draft-quantize", "int9"], r"^quantize-draft is 'int9'; it can be int4"),
    ],
)
def test_a_mistake_is_told_before_a_process_is_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """MF-6, MF-7: also under the other name of the draft's flag."""

    def started(*_: object) -> str:
        raise AssertionError("an importer was started")

    monkeypatch.setattr(create_command, "import_model", started)
    (folder / "Modelfile").write_text("FROM ./tiny\n")
    done = CliRunner().invoke(
        create_command.command,
        ["small", "-f", str(folder / "Modelfile"), *arguments],
        obj=Settings.from_environment({"FORERUN_MODELS": str(folder / "models")}),
    )
    assert isinstance(done.exception, RequestError)
    with pytest.raises(RequestError, match=message):
        raise done.exception
