"""A hybrid of real proportions with random weights, made on the spot for `hybrid.py`.

Three gated-delta layers to one of gated attention, sized and named as Qwen3.5-0.8B, with the head
that predicts one token further. The same seed makes the same bytes. Matrices keep a signal's size
and decays spread as those of a trained model do, so that activations and speculation stay sane.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

INTERVAL = 4  # of every so many layers the last one attends
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 256
LINEAR_HEADS, LINEAR_DIM = 16, 128  # of keys and of values alike
CONV = 4  # positions under the convolution
ROTARY = 0.25  # of a head
WEIGHTS = "model.safetensors"
NOISE = 0.1  # of vectors around their neutral value


@dataclass(frozen=True, slots=True)
class Shape:
    """What may be made smaller for a test."""

    layers: int = 24
    hidden: int = 1024
    vocabulary: int = 151_936

    def __post_init__(self) -> None:
        assert self.layers % INTERVAL == 0, f"{self.layers} layers are no multiple of {INTERVAL}"

    @property
    def intermediate(self) -> int:
        return self.hidden * 7 // 2


def write_hybrid(folder: Path, shape: Shape, *, seed: int = 0) -> Path:
    """Write configuration, tokenizer and bfloat16 weights as a published folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = configuration(shape)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", {"eos_token_id": shape.vocabulary - 1})
    _write_tokenizer(folder, shape.vocabulary)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: drawn(name, size, generator).to(torch.bfloat16)
        for name, size in sorted(sizes(config).items())
    }
    save_file(weights, folder / "weights.part", metadata={"format": "pt"})
    (folder / "weights.part").rename(folder / WEIGHTS)  # there is all of it or none
    return folder


def configuration(shape: Shape) -> dict[str, object]:
    """config.json of Qwen3.5-0.8B's text part, with another vocabulary."""
    attends = [(i + 1) % INTERVAL == 0 for i in range(shape.layers)]
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "layer_types": ["full_attention" if full else "linear_attention" for full in attends],
        "full_attention_interval": INTERVAL,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "attn_output_gate": True,
        "linear_num_key_heads": LINEAR_HEADS,
        "linear_num_value_heads": LINEAR_HEADS,
        "linear_key_head_dim": LINEAR_DIM,
        "linear_value_head_dim": LINEAR_DIM,
        "linear_conv_kernel_dim": CONV,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": ROTARY,
        },
        "tie_word_embeddings": True,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": shape.vocabulary - 1,
    }


def sizes(config: dict[str, object]) -> dict[str, torch.Size]:
    """Every tensor of the checkpoint: transformers' own model, and the head that it leaves out."""
    with torch.device("meta"):
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**config))
    found = {name: tensor.shape for name, tensor in model.state_dict().items()}
    del found["lm_head.weight"]  # tied
    attends = f"model.layers.{INTERVAL - 1}."
    for name in [name for name in found if name.startswith(attends)]:
        found[f"mtp.layers.0.{name.removeprefix(attends)}"] = found[name]
    hidden = found["model.norm.weight"][0]
    for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        found[f"mtp.{norm}.weight"] = torch.Size((hidden,))
    return found | {"mtp.fc.weight": torch.Size((hidden, 2 * hidden))}


def drawn(name: str, size: torch.Size, generator: torch.Generator) -> Tensor:
    """Values of one tensor, in float32."""
    if name.endswith(".A_log"):  # decays as Mamba 2 draws them
        return torch.rand(size, generator=generator).mul(15).add(1).log()
    if name.endswith(".dt_bias"):  # softplus of it is a step, 0.001 to 0.1 on a log scale
        step = torch.rand(size, generator=generator).mul(math.log(100)).add(math.log(0.001)).exp()
        return step.expm1().log()
    noise = torch.randn(size, generator=generator)
    if name.endswith(".linear_attn.norm.weight"):
        return 1 + NOISE * noise
    if len(size) == 1:  # of norms that add one themselves
        return NOISE * noise
    return noise / math.sqrt(size[-1])


def _write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Of bytes, and a word for each further id: nobody reads what a random model says."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(f"<{number}>" for number in range(len(letters), vocabulary))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", {"add_bos_token": False})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
