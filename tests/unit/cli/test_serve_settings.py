"""What `forerun serve` hands on to the server and to its children."""

import logging

import pytest
from click.testing import CliRunner

from forerun.api import server
from forerun.base.logs import ROOT
from forerun.cli.serve import command
from forerun.settings import Settings


@pytest.mark.parametrize(
    ("environment", "arguments", "level", "form"),
    [
        ({}, [], "info", "text"),
        ({}, ["--log-format", "json"], "info", "json"),
        ({"FORERUN_LOG": "debug", "FORERUN_LOG_FORMAT": "json"}, [], "debug", "json"),
        ({"FORERUN_LOG_FORMAT": "json"}, ["--log-format", "text"], "info", "text"),
    ],
)
def test_children_log_as_the_server_does(monkeypatch, environment, arguments, level, form) -> None:
    """08 ENV: FORERUN_LOG is info here where it is not given."""
    handed: list[Settings] = []
    monkeypatch.setattr(server, "serve", lambda settings, _: handed.append(settings))
    ours = logging.getLogger(ROOT)
    before = (ours.handlers[:], ours.level, ours.propagate)
    given = Settings.from_environment(environment)
    try:
        done = CliRunner().invoke(command, ["--host", "127.0.0.1:0", *arguments], obj=given)
        assert done.exception is None
        assert logging.getLevelName(ours.level) == level.upper()
    finally:
        ours.handlers[:], ours.level, ours.propagate = before
    child = Settings.from_environment(handed[0].environment())
    assert (child.log, child.log_format) == (level, form)
    assert str(child.host) == "127.0.0.1:0"
