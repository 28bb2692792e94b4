"""The store starts light: `forerun list` must answer at once (08 RUN-1)."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import forerun.store

HEAVY = ("torch", "numpy", "huggingface_hub", "httpx2", "tqdm")


def test_no_module_of_the_store_loads_a_heavy_library() -> None:
    """The hub's client alone takes longer to import than all of the store."""
    names = [
        f"forerun.store.{module.name}" for module in pkgutil.iter_modules(forerun.store.__path__)
    ]
    script = f"import sys, {', '.join(names)}; print([n for n in {HEAVY} if n in sys.modules])"
    child = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(Path(forerun.store.__file__).parents[2])},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert child.stdout.strip() == b"[]"
