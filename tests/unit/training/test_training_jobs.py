"""What a request for a head is refused for before there is any work."""

from pathlib import Path

import pytest

from fixtures.tiny import tiny_store
from forerun.base.errors import ForerunError, RequestError
from forerun.importer.drafts import PACKAGED
from forerun.protocol.training import TrainRequest
from forerun.settings import Settings
from forerun.training.job import train_head
from forerun.training.recipe import no_report


@pytest.mark.parametrize("out", ["file/head", "file", "x" * 300])
def test_a_head_whose_folder_cannot_be_made_is_refused_by_its_option(tmp_path: Path, out: str):
    tiny_store(tmp_path / "models", "llama")
    (tmp_path / "file").write_text("")
    settings = Settings.from_environment({"FORERUN_MODELS": str(tmp_path / "models")})
    request = TrainRequest(name="tiny", out=str(tmp_path / out), minutes=1, device="cpu")
    with pytest.raises(RequestError, match=r"cannot be made a folder .*; give another --out$"):
        train_head(request, settings, no_report)


@pytest.mark.parametrize("given", ["nothing", "another"])
def test_a_head_to_start_from_is_looked_at_before_anything_is_written(tmp_path: Path, given: str):
    tiny_store(tmp_path / "models", "llama")
    settings = Settings.from_environment({"FORERUN_MODELS": str(tmp_path / "models")})
    start = tmp_path if given == "nothing" else PACKAGED / "smollm2"
    told: list[str] = []
    request = TrainRequest(
        name="tiny", out=str(tmp_path / "out"), minutes=1, device="cpu", start=str(start)
    )
    with pytest.raises(ForerunError, match=r"holds no head|of this model has"):
        train_head(request, settings, lambda what, *_: told.append(what))
    assert set(told) <= {"loading"}
