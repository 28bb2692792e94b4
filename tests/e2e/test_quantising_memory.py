"""What quantising a large tensor costs in memory, measured in a process of its own (07 CFG-7)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

SOURCES = Path(__file__).parents[2] / "src"
ROW_BYTES = 4096
# Far under CFG-7's three times the tensor and 200 MB: what slabs cost, of a tensor of any size.
ALLOWED = 90_000_000

MEASURED = """
import os, sys, threading
from pathlib import Path
import forerun.importer.check
import forerun.importer.quantising
from forerun.importer.progress import Reporter
from forerun.importer.run import ImportRun
from forerun.importer.sources import folder_source
from forerun.store.store import Store

def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024

folder, root, kind = sys.argv[1:]
before = peak = anonymous()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

thread = threading.Thread(target=watch)
thread.start()
source = folder_source(Path(folder), quantize=kind)
with Store(Path(root)).importing() as writer:
    run = ImportRun(Store(Path(root)), writer, Reporter(os.open(os.devnull, os.O_WRONLY)))
    (layer,) = run.tensor_layers(source, "tensors")
done.set()
thread.join()
print(peak - before)
"""


@pytest.mark.parametrize(
    ("megabytes", "kind"),
    [
        (100, "int4"),
        pytest.param(300, "int4", marks=pytest.mark.slow),
        pytest.param(300, "nvfp4", marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path, megabytes: int, kind: str) -> None:
    """CFG-7: anonymous memory above its value after imports, of one tensor of that size."""
    weight = torch.empty(megabytes * 10**6 // ROW_BYTES, ROW_BYTES // 2, dtype=torch.bfloat16)
    save_file({"layers.0.mlp.up_proj.weight": weight.normal_()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    measured = subprocess.run(
        [sys.executable, "-c", MEASURED, str(tmp_path), str(tmp_path / "store"), kind],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
    )
    growth = int(measured.stdout)
    assert growth <= ALLOWED, f"{growth / 1e6:.0f} MB"
