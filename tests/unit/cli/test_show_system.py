"""`forerun show --system`: what it tells of the machine, whatever the kernels' own process does."""

import os
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from forerun import __version__
from forerun.cli import machine
from forerun.cli.show import command
from forerun.settings import Settings

ANSWER = """
import json, sys
assert "torch" not in sys.modules
print(json.dumps({"isa": "avx2", "threads": 4, "library": "kernels.so", "reason": None}))
"""


@pytest.fixture
def child(tmp_path: Path):
    """What `cpu_kernels` makes of a kernels' process that runs these lines."""

    def run(lines: str, **variables: str) -> str:
        (tmp_path / "kernels_child.py").write_text(lines)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        settings = Settings.from_environment(variables)
        return machine.cpu_kernels(settings, environment, "kernels_child")

    return run


def test_the_kernels_tell_what_they_are(child) -> None:
    assert child(ANSWER) == "forerun's: avx2, 4 threads"
    assert child(ANSWER, FORERUN_THREADS="1") == "forerun's: avx2, 1 thread"


def test_the_kernels_tell_why_they_do_not_serve(child) -> None:
    said = child("""print('{"isa": null, "threads": 2, "library": null, "reason": "not built"}')""")
    assert said == "PyTorch's: not built"


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("raise ImportError('no such thing')", "PyTorch's: forerun's failed: ImportError: no such"),
        ("import os; os._exit(9)", "PyTorch's: forerun's failed: exit 9"),
        ("import os; os.abort()", "PyTorch's: forerun's failed: exit -6"),
        ("print('hello')", "PyTorch's: forerun's failed: exit 0"),
        ("print('[1]')", "PyTorch's: forerun's failed: exit 0"),
        ("", "PyTorch's: forerun's failed: exit 0"),
    ],
)
def test_kernels_that_break_are_a_reason_and_no_error(child, lines: str, told: str) -> None:
    assert child(lines).startswith(told)


def test_kernels_that_hang_are_given_up(child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "LIMIT_S", 0.3)
    assert "did not answer" in child("import time; time.sleep(60)")


def test_kernels_that_are_switched_off_are_not_asked(child, tmp_path: Path) -> None:
    """08 ENV: FORERUN_CPU_KERNELS=0 forces the references."""
    asked = tmp_path / "asked"
    told = child(f"open({str(asked)!r}, 'w')", FORERUN_CPU_KERNELS="0")
    assert told == "references: FORERUN_CPU_KERNELS is 0"
    assert not asked.exists()


def test_the_table_names_versions_devices_and_store(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {"FORERUN_MODELS": str(tmp_path / "store"), "FORERUN_DEVICE": "cuda:7"}
    )
    done = CliRunner().invoke(command, ["--system"], obj=settings)
    assert done.exit_code == 0, done.output
    rows = dict(re.split(" {4,}", line, maxsplit=1) for line in done.output.splitlines())
    assert rows["forerun"] == __version__
    assert rows["torch"][0].isdigit()
    assert rows["python"].startswith(sys.version.split()[0])
    assert rows["CPU kernels"].startswith(("forerun's: ", "PyTorch's: "))
    assert rows["FORERUN_CPU_KERNELS"] == "1"
    assert " of " in rows["cpu"]
    assert rows["models load on"] == "cuda:7"
    assert rows["model store"] == str(tmp_path / "store")
    assert not (tmp_path / "store").exists(), "looking makes nothing"


@pytest.mark.parametrize("arguments", [[], ["", "--verbose"], ["tiny", "--system"]])
def test_a_name_or_the_system_but_not_both(arguments: list[str]) -> None:
    done = CliRunner().invoke(command, arguments, obj=Settings.from_environment({}))
    assert done.exit_code == 2
    assert "show takes a model's name, or --system" in done.output
