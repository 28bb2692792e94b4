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
from forerun.engine.memory import release_freed
from forerun.kernels.native.library import Library
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.quant import codec

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

def packing(*given, pack=Library.pack):
    progress(0, 0)
    pack(*given)

def packing_codes(*given, pack=codec.pack):
    progress(0, 0)  # amid the temporaries of quantising
    return pack(*given)

Library.pack, codec.pack = packing, packing_codes
model = load_model(config, [folder / "model.safetensors"], placement, progress)
gc.collect()
release_freed(placement.device)  # as the runner does after a load
head = model.self_draft()
held = model.facts.weight_bytes + (head.facts.weight_bytes if head else 0)
print(json.dumps([held, peak - before, anonymous() - before]))
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


EXPERTS, WIDTH, WIDE, HEADS = 16, 512, 1024, 128  # of a mixture, whose hidden size is WIDTH
HEAD_EXPERTS = 32
GATE_UP = EXPERTS * 2 * WIDE * WIDTH * 5 // 8  # bytes in int4 with groups of 32


def packed(name: str, *shape: int) -> dict[str, torch.Tensor]:
    """A weight, or a stack of them, in int4 with groups of 32."""
    *rows, columns = shape
    groups = (*rows, columns // 32)
    return {
        name: torch.zeros((*rows, columns // 8), dtype=torch.uint32),
        f"{name}.scale": torch.zeros(groups, dtype=torch.float16),
        f"{name}.bias": torch.zeros(groups, dtype=torch.float16),
    }


def write_mixture(folder: Path) -> None:
    """As the store has it: gates and ups of a layer's experts are a stack each."""
    tensors = {"model.embed_tokens.weight": torch.zeros(64, WIDTH)}
    norms = ["model.norm"]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        norms += [f"{at}input_layernorm", f"{at}post_attention_layernorm"]
        attention = {"q": (HEADS, WIDTH), "k": (HEADS, WIDTH), "v": (HEADS, WIDTH)}
        for name, shape in {**attention, "o": (WIDTH, HEADS)}.items():
            tensors |= packed(f"{at}self_attn.{name}_proj.weight", *shape)
        for name in "qk":
            tensors[f"{at}self_attn.{name}_norm.weight"] = torch.zeros(32)
        tensors[f"{at}mlp.gate.weight"] = torch.zeros(EXPERTS, WIDTH)
        sizes = {"gate": (WIDE, WIDTH), "up": (WIDE, WIDTH), "down": (WIDTH, WIDE)}
        for name, sides in sizes.items():
            tensors |= packed(f"{at}mlp.experts.{name}_proj", EXPERTS, *sides)
    tensors |= {f"{norm}.weight": torch.zeros(WIDTH) for norm in norms}
    metadata = {"quant_type": "int4", "group_size": "32"}
    save_file(tensors, folder / "model.safetensors", metadata)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 64,
        "hidden_size": WIDTH,
        "intermediate_size": WIDE,
        "moe_intermediate_size": WIDE,
        "num_experts": EXPERTS,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "head_dim": 32,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def test_a_mixture_peaks_at_the_model_and_one_layers_experts(tmp_path: Path) -> None:
    """LOD-4, LIN-12: stacks that are joined, and then packed for the kernels, go layer by layer.

    Room for packed weights is in large pages, so that a layer more than there is may be resident.
    """
    write_mixture(tmp_path)
    weights, peak, kept = measure(tmp_path, "bfloat16")
    assert weights >= LAYERS * 3 * GATE_UP // 2
    assert peak <= weights + 2 * GATE_UP + SLACK_BYTES < weights + LAYERS * GATE_UP
    assert kept <= weights + SLACK_BYTES


def write_mixture_with_head(folder: Path) -> None:
    """One small quantised layer, and a dense head whose experts are most of the checkpoint."""
    tensors = {"model.embed_tokens.weight": torch.zeros(64, WIDTH)}
    gate_up, down = (HEAD_EXPERTS, 2 * WIDE, WIDTH), (HEAD_EXPERTS, WIDTH, WIDE)
    at, of_head = "model.layers.0.", "mtp.layers.0."
    attention = {"q": (2 * HEADS, WIDTH), "k": (HEADS, WIDTH), "v": (HEADS, WIDTH)}
    for name, shape in {**attention, "o": (WIDTH, HEADS)}.items():
        tensors |= packed(f"{at}self_attn.{name}_proj.weight", *shape)
        tensors[f"{of_head}self_attn.{name}_proj.weight"] = torch.zeros(shape)
    for name, shape in {"gate": (64, WIDTH), "up": (64, WIDTH), "down": (WIDTH, 64)}.items():
        tensors |= packed(f"{at}mlp.{name}_proj.weight", *shape)
    tensors[f"{of_head}mlp.gate.weight"] = torch.zeros(HEAD_EXPERTS, WIDTH)
    tensors[f"{of_head}mlp.experts.gate_up_proj"] = torch.zeros(*gate_up, dtype=torch.bfloat16)
    tensors[f"{of_head}mlp.experts.down_proj"] = torch.zeros(*down, dtype=torch.bfloat16)
    norms = ["model.norm", "mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"]
    for layer in (at, of_head):
        norms += [f"{layer}input_layernorm", f"{layer}post_attention_layernorm"]
        for name in "qk":
            tensors[f"{layer}self_attn.{name}_norm.weight"] = torch.zeros(32)
    tensors["mtp.fc.weight"] = torch.zeros(WIDTH, 2 * WIDTH)
    tensors |= {f"{norm}.weight": torch.zeros(WIDTH) for norm in norms}
    dense = {name: t.bfloat16() if t.dtype == torch.float32 else t for name, t in tensors.items()}
    save_file(dense, folder / "model.safetensors", {"quant_type": "int4", "group_size": "32"})
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "vocab_size": 64,
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "moe_intermediate_size": WIDE,
        "num_experts": HEAD_EXPERTS,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [0],
        "layer_types": ["full_attention"],
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "head_dim": 32,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))


def test_a_head_that_is_quantised_peaks_at_its_codes(tmp_path: Path) -> None:
    """LOD-4, LIN-12: rows by rows, beside what the kernels pack; dense rows stay in the file."""
    write_mixture_with_head(tmp_path)
    weights, peak, kept = measure(tmp_path, "bfloat16")
    codes = HEAD_EXPERTS * 3 * WIDE * WIDTH * 5 // 8  # of the experts, which are packed after that
    assert codes < weights < codes + SLACK_BYTES
    assert peak <= weights + codes + 2 * SLACK_BYTES  # twice as much where stacks go whole
    assert kept <= weights + SLACK_BYTES
