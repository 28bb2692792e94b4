"""A kill at any step leaves every model old or new and whole, and the next run continues (T13)."""

import os
import subprocess
import sys
from pathlib import Path

from forerun.store import store as module

SOURCES = Path(module.__file__).parents[2]
SCRIPT = Path(__file__).with_name("killed_store.py")


def test_a_killed_import_leaves_a_consistent_store(tmp_path: Path) -> None:
    """07 T13, CFG-6, CAT-6: SIGKILL at every 61st step; all 1,700 were tried once."""
    child = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "61"],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert child.returncode == 0, child.stderr.decode()
    assert int(child.stdout) > 20
