"""What a runner and an importer say reaches the user, once: 08 RUN-3, 05 LOD-10."""

import tempfile
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.stored import tiny_store
from fixtures.tiny import tiny_folder
from forerun.base.errors import NotFoundError, RunnerError
from forerun.protocol.imports import CreateRequest, Imported
from forerun.scheduler import runners
from forerun.scheduler.importing import run_import
from forerun.scheduler.runners import LoadOptions, RunnerProcess

ONE_THREAD = LoadOptions(num_thread=1)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("logs"))


def test_a_warning_of_the_importer_is_one_line(settings, tmp_path, capfd):
    """RUN-3: a tensor that the model does not use."""
    folder = tiny_folder(tmp_path / "checkpoint", "llama")
    path = folder / "model.safetensors"
    save_file({**load_file(path), "model.extra.weight": torch.ones(2)}, path, {"format": "pt"})
    request = CreateRequest(name="surplus", modelfile=f"FROM {folder}\n", folder=str(folder))
    capfd.readouterr()
    *_, last = run_import(request, settings)
    assert isinstance(last, Imported)
    (line,) = capfd.readouterr().err.splitlines()
    assert "warning" in line
    assert "model.extra.weight" in line


def test_a_runner_says_nothing_unless_asked(settings, capfd):
    with RunnerProcess("tiny", settings, options=ONE_THREAD) as runner:
        runner.load()
    assert capfd.readouterr().err == ""


def test_a_runner_that_logs_is_heard(settings, capfd):
    """RUN-3: the child's own level decides."""
    with RunnerProcess("tiny", replace(settings, log="info"), options=ONE_THREAD) as runner:
        runner.load()
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "loaded model=tiny context=512" in line]
    assert [line for line in lines if "weights loaded" in line]


def test_why_a_load_failed_is_in_the_error_alone(settings, capfd):
    """LOD-10: the process ends with the reason; whoever shows the error shows it once."""
    with RunnerProcess("absent", settings) as runner:
        with pytest.raises(NotFoundError, match="absent"):
            runner.load()
        assert "absent" in runner.connection._last_error()
    assert capfd.readouterr().err == ""


def test_a_temporary_folder_too_long_for_a_socket_is_not_used(settings, tmp_path, monkeypatch):
    """05 HTP-1: the socket is below a shorter one, as private."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with RunnerProcess("tiny", settings, options=ONE_THREAD) as runner:
        runner.load()
        folder = runner.connection._path.parent
        assert folder.stat().st_mode & 0o777 == 0o700
        assert folder.parent != long
        assert runner.connection.status().state == "ready"
    assert not folder.exists()
    assert list(long.iterdir()) == []


def test_where_no_folder_is_short_enough_the_error_says_what_to_do(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(runners, "SOCKET_PATH_BYTES", 10)
    monkeypatch.setattr(runners, "SHORT_FOLDER", str(tmp_path / "absent"))
    runner = RunnerProcess("tiny", settings)
    with pytest.raises(RunnerError, match="set TMPDIR to a shorter one"):
        runner.load()
    runner.close()
