"""`forerun run --draft` and `/show`, with a runner of the command's own (03 DRF-8, STA-2)."""

from pathlib import Path

import pytest

from fixtures.stored import tiny_store
from forerun.cli.private import PrivatePlace
from forerun.protocol.events import Done, Progress
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.runners import LoadOptions
from forerun.settings import Settings
from forerun.store.names import ModelName

NAME = ModelName.parse("tiny")
REPEATED = "say it again, say it again, say it again, "


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("drafting")
    return tiny_store(folder)


def test_a_private_runner_tells_its_drafters_and_what_they_did(settings: Settings) -> None:
    """DRF-8, GEN-6: the same text with and without; `/show` names what may be chosen."""
    place = PrivatePlace(settings)
    assert "drafters" not in place.section(NAME, "info")  # nothing is loaded
    with place.opened(NAME, LoadOptions()) as model:
        shown = [line.split() for line in place.section(NAME, "info").splitlines()]
        assert ["drafters", "lookup"] in shown
        ends = {}
        for draft in ("lookup", "off"):
            options = {"temperature": 0, "num_predict": 40, "draft": draft}
            request = CompletionRequest(prompt=REPEATED, options=options, ignore_eos=True)
            *chunks, end = (
                event for event in model.complete(request) if not isinstance(event, Progress)
            )
            assert isinstance(end, Done)
            ends[draft] = "".join(chunk.text for chunk in chunks), end.figures.drafting
    assert ends["lookup"][0] == ends["off"][0]
    assert ends["off"][1] is None
    assert ends["lookup"][1] is not None
    assert ends["lookup"][1].drafter == "lookup"
