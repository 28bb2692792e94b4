"""What a load costs: the weights once, the largest fold on top while it lasts, nothing after."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS, HIDDEN, INNER, VOCABULARY = 4, 1024, 2816, 8192
SLACK_BYTES = 12 << 20  # the interpreter's own growth over some hundred calls
BF16, FP32 = 2, 4

# Anonymous memory, since mapped source pages are file-backed and the system may drop them.
SCRIPT = """
import gc, json, sys
from pathlib import Path
import torch
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement

def anonymous():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])

folder, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
config = json.loads((folder / "config.json").read_text())
placement = Placement(dtype, torch.device("cpu"), KernelChoice())
before = peak = anonymous()

def progress(done, total):
    global peak
    peak = max(peak, anonymous())

model = load_model(config, [folder / "model.safetensors"], placement, progress)
gc.collect()
print(json.dumps([model.facts.weight_bytes, peak - before, anonymous() - before]))
"""


def write_checkpoint(folder: Path) -> None:
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in "qkvo":
            shapes[f"{at}self_attn.{name}_proj.weight"] = (HIDDEN, HIDDEN)
        for name in ("gate", "up"):
            shapes[f"{at}mlp.{name}_proj.weight"] = (INNER, HIDDEN)
        shapes[f"{at}mlp.down_proj.weight"] = (HIDDEN, INNER)
        for name in ("input", "post_attention"):
            shapes[f"{at}{name}_layernorm.weight"] = (HIDDEN,)
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def measure(folder: Path, dtype: str) -> list[int]:
    """Bytes of weights as held, peak growth of anonymous memory, growth that stays."""
    command = [sys.executable, "-c", SCRIPT, str(folder), dtype]
    path = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    assert isinstance(measured, list)
    return measured


def test_a_cast_load_peaks_at_the_model_and_one_fold(tmp_path: Path) -> None:
    """LOD-4, LOD-6, LIN-12"""
    write_checkpoint(tmp_path)
    weights, peak, kept = measure(tmp_path, "float32")
    largest_fold = 2 * INNER * HIDDEN * FP32
    assert weights >= FP32 * LAYERS * (4 * HIDDEN * HIDDEN + 3 * INNER * HIDDEN)
    assert peak <= weights + largest_fold + SLACK_BYTES
    assert kept <= weights + SLACK_BYTES


def test_weights_that_are_used_as_stored_stay_in_their_file(tmp_path: Path) -> None:
    """LOD-6: only what was fused takes memory of its own."""
    write_checkpoint(tmp_path)
    weights, peak, kept = measure(tmp_path, "bfloat16")
    folded = BF16 * LAYERS * (3 * HIDDEN * HIDDEN + 2 * INNER * HIDDEN)
    assert folded < weights - 3 * SLACK_BYTES
    assert kept <= folded + SLACK_BYTES
    assert peak <= folded + SLACK_BYTES
