"""docs/options.md is what the table of options makes of it."""

import runpy
from pathlib import Path

import pytest

from forerun.base.options import OPTIONS, Option

SCRIPT = Path(__file__).parents[3] / "scripts" / "options.py"


def test_what_a_load_fixes_is_told_by_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what only a Modelfile sets, nor what has no effect."""
    page = runpy.run_path(str(SCRIPT))
    row = Option("num_new", "int", 1, load_time=True)
    monkeypatch.setitem(OPTIONS, row.name, row)
    monkeypatch.setitem(page["MEANING"], row.name, "something new")
    fixed = "Fixed when a model is loaded: `num_ctx`, `num_thread`, `num_gpu`, `num_new`.\n"
    assert fixed in page["render"]()
