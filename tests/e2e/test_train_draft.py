"""`forerun train-draft` as a user meets it: a real process trains a head for a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.remade import remade
from fixtures.tiny import Family, tiny_store
from forerun.base.errors import NotFoundError, RequestError
from forerun.protocol.training import TrainedHead, TrainRequest
from forerun.scheduler.training import run_training
from forerun.settings import Settings

ROOT = Path(__file__).parents[2]
HEAD = ("model.safetensors", "config.json", "recipe.json")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_store(folder, "llama")
    return folder


def _variables(models: Path) -> dict[str, str]:
    return {
        "FORERUN_MODELS": str(models),
        "FORERUN_DEVICE": "cpu",
        "PYTHONPATH": str(ROOT / "src"),
        "PATH": os.environ.get("PATH", ""),
    }


def _train(
    models: Path, folder: Path, *arguments: str, before: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """`before`: a folder of modules that are found before ours."""
    variables = _variables(models)
    if before is not None:
        variables["PYTHONPATH"] = f"{before}{os.pathsep}{variables['PYTHONPATH']}"
    command = [sys.executable, "-m", "forerun", "train-draft", "tiny", *arguments]
    return subprocess.run(
        [*command, "--budget-minutes", "0.02", "--device", "cpu"],
        env=variables,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )


def test_a_head_is_trained_measured_and_written(models: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.txt"
    own.write_text("How are you?\n\nTwo lines\nof one prompt", encoding="utf-8")
    done = _train(models, tmp_path, "--text", str(own), "--out", "head", "--seed", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split() == ["DRAFT", "ACCEPTED", "TOKENS", "A", "ROUND"]
    assert "DRAFT head" in done.stderr  # the line of a Modelfile
    assert sorted(path.name for path in (tmp_path / "head").iterdir()) == sorted(HEAD)
    recipe = json.loads((tmp_path / "head" / "recipe.json").read_text())
    assert recipe["recipe"]["seed"] == 7
    assert recipe["target"]["name"] == "tiny:latest"
    assert recipe["training"]["steps"] > 0
    assert recipe["corpus"]["written_by_target"] > 0
    assert len(recipe["held_out"]["acceptance"]) == len(done.stdout.splitlines()) - 1

    later = _train(models, tmp_path, "--start", "head", "--out", "later")
    assert later.returncode == 0, later.stderr
    onwards = json.loads((tmp_path / "later" / "recipe.json").read_text())
    assert (recipe["started_from"], len(onwards["started_from"])) == (None, 64)
    assert onwards["recipe"]["learning_rate"] < recipe["recipe"]["learning_rate"]

    again = _train(models, tmp_path, "--out", "head")
    assert again.returncode == 1
    assert again.stderr.startswith("Error: ")
    assert "holds a head already" in again.stderr


def test_a_file_without_prompts_is_refused_in_one_line(models: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n  \n", encoding="utf-8")
    done = _train(models, tmp_path, "--text", "empty.txt")
    assert done.returncode == 1
    assert "holds no prompts" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_stopped_training_goes_on_in_another_process(models: Path, tmp_path: Path) -> None:
    settings = Settings.from_environment(_variables(models))
    request = TrainRequest(name="tiny", out=str(tmp_path / "head"), minutes=0.02, device="cpu")
    steps = run_training(request, settings)
    while next(steps).status != "measuring":  # after training has ended, with its state on disk
        pass
    steps.close()
    corpus = tmp_path / "head" / "unfinished" / "corpus"
    before = {path.name: path.stat().st_mtime_ns for path in corpus.iterdir()}
    assert before
    *later, last = run_training(request, settings)
    assert isinstance(last, TrainedHead)
    assert not {"writing", "training"} & {event.status for event in later}  # both were done
    assert (tmp_path / "head" / "model.safetensors").exists()
    assert not (tmp_path / "head" / "unfinished").exists()


def test_what_cannot_be_trained_says_so(models: Path, tmp_path: Path) -> None:
    settings = Settings.from_environment(_variables(models))
    out = str(tmp_path / "h")
    with pytest.raises(NotFoundError, match="missing"):
        list(run_training(TrainRequest(name="missing", out=out, minutes=1), settings))
    with pytest.raises(RequestError, match="mps"):
        list(run_training(TrainRequest(name="tiny", out=out, minutes=1, device="mps"), settings))


FAMILIES: tuple[tuple[Family, str], ...] = (
    ("gemma3", "Gemma3ForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
    ("qwen3_5", "Qwen3_5ForCausalLM"),
    ("qwen3_next", "Qwen3NextForCausalLM"),
)


@pytest.mark.parametrize(("family", "architecture"), FAMILIES)
def test_a_model_whose_heads_are_not_trained_is_refused_before_any_work(
    tmp_path: Path, family: Family, architecture: str
) -> None:
    """Not even torch is imported, which alone takes seconds; and nothing is left behind."""
    tiny_store(tmp_path / "models", family)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "torch.py").write_text("raise SystemExit('torch was imported')")
    done = _train(tmp_path / "models", tmp_path, "--out", "head", before=trap)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    trained = "LlamaForCausalLM and Qwen3ForCausalLM"
    assert line == (
        f"Error: this model is {architecture}; draft heads can be trained for {trained} alone"
    )
    assert not (tmp_path / "head").exists()


def test_a_model_that_cannot_chat_is_refused_before_any_work(tmp_path: Path) -> None:
    """What it would be trained on is written in chats."""
    store = tiny_store(tmp_path / "models", "llama", name="chats")
    remade(store, "chats", "tiny", files={"tokenizer_config.json": b"{}"})
    done = _train(tmp_path / "models", tmp_path, "--out", "head")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "has no chat template" in done.stderr
    assert not (tmp_path / "head").exists()
