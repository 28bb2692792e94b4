"""What the log says, once a process, where the native kernels do not serve."""

import os
import subprocess
import sys

import pytest

from fixtures.native_kernels import native_library
from fixtures.smollm2 import models_folder, smollm2

pytestmark = pytest.mark.model

LOAD = """
import logging, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from fixtures.smollm2 import smollm2
from forerun.kernels.native import sources
if "unbuilt" in sys.argv:
    sources.FOLDER = Path("/nowhere")
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest
from forerun.settings import Settings

stored = smollm2()
request = LoadRequest.under(Settings.from_environment(), str(stored.name), num_ctx=64, device="cpu")
for _ in range(2):
    engine = load_engine(stored, request, lambda *_: None)
    assert not engine.model.facts.own_threads
"""


@pytest.mark.parametrize(
    ("argument", "switch", "reason"),
    [("", "0", "CPU kernels are switched off"), ("unbuilt", "1", "install a C++ compiler")],
)
def test_layers_say_once_what_serves_them(argument: str, switch: str, reason: str) -> None:
    """06 KER-1, 08 ENV: in one line for all layers and all loads, from the environment to the log.

    A missing library names the remedy.
    """
    native_library()
    smollm2()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "FORERUN_TEST_MODELS": str(models_folder()),
        "FORERUN_CPU_KERNELS": switch,
    }
    done = subprocess.run(
        [sys.executable, "-c", LOAD, argument],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("layers run as separate")]
    assert len(said) == 1
    assert reason in said[0]
