"""What decides in a hybrid stays float32 in a bfloat16 model of a float32 checkpoint.

Numbers are such that rounding one of them to bfloat16, or a product with it, loses most of what it
says. Two columns of the stream hold the same constant, whatever the token; a weight of 384 on one
and of -(384 + d) on the other says d times it, and nothing where bfloat16, in steps of 2, holds it.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fixtures.checkpoints import edit_tensors, loaded, logits, placement, read_config
from fixtures.qwen import Tensors
from fixtures.tiny import Family, tiny_folder
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderBuilder
from forerun.models.qwen3_5.config import read_hybrid
from forerun.models.qwen3_5.tensors import HybridBuilder
from forerun.models.tensor_files import open_tensors
from forerun.models.weights import Weights
from forerun.nn.layer_weights import DeltaWeights

TOKENS = [(37 * place + place * place) % 256 for place in range(30)]
LARGE = 384.0
WRITERS = ("out_proj.weight", "o_proj.weight", "down_proj")  # of the stream
DECIDERS = {"mlp.gate.": 0.9, "shared_expert_gate.": 0.7, "in_proj_b.": 0.7, "in_proj_a.": 0.2}
ROUNDING = 0.12  # of all logits: bfloat16 activations; any loss of the above is over 0.18


def telling(tensors: Tensors) -> Tensors:
    """Weights of which bfloat16 holds little."""
    generator = torch.Generator().manual_seed(3)
    for name, tensor in tensors.items():
        if "embed_tokens" in name:
            tensor[:, :2] = 4.0
        elif name.endswith(WRITERS) or "experts.down_proj" in name:
            tensor[..., :2, :] = 0.0
        elif name.endswith("layernorm.weight"):
            tensor[:2] = 0.0
        elif name.endswith("A_log"):
            tensor.copy_(64.2 + 0.01 * torch.arange(len(tensor)))
        elif name.endswith("dt_bias"):
            tensor.copy_(-66.2 - 0.01 * torch.arange(len(tensor)))
        for part, most in DECIDERS.items():
            if part in name:
                says = most * (2 * torch.rand(len(tensor), generator=generator) - 1)
                tensor.zero_()  # so that no two experts are ever near a tie
                tensor[:, 0], tensor[:, 1] = LARGE, -(LARGE + says)
    return tensors


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_what_decides_is_not_rounded(tmp_path: Path, family: Family) -> None:
    """QWN-9, QWN-12, Q3M-2, POA-7: decay, beta, router and the gate of the shared expert."""
    folder = tiny_folder(tmp_path, family, seed=1)
    edit_tensors(folder, telling)
    wanted = logits(loaded(folder), TOKENS)
    ours = logits(loaded(folder, torch.bfloat16), TOKENS).float()
    error = (ours - wanted).norm() / wanted.norm()
    assert error <= ROUNDING


def test_a_recurrent_layers_own_parameters_are_as_stored(tmp_path: Path) -> None:
    """QWN-8, QWN-9, POA-7: the convolution too, whose rounding hardly shows in a logit."""
    folder = tiny_folder(tmp_path, "qwen3_5", seed=1)
    file, config = folder / "model.safetensors", read_config(folder)
    weights = Weights(open_tensors([file]), config, placement(torch.bfloat16))
    hybrid = read_hybrid(ConfigReader(config))
    layer, *_ = HybridBuilder(hybrid, DecoderBuilder(hybrid.shape, weights, "model.")).layers()
    mixer, stored = layer.mixer, load_file(file)
    assert isinstance(mixer, DeltaWeights)
    at = "model.layers.0.linear_attn."
    assert torch.equal(mixer.conv_weight, stored[f"{at}conv1d.weight"].squeeze(1))
    assert torch.equal(mixer.log_decay, stored[f"{at}A_log"])
    assert torch.equal(mixer.step_bias, stored[f"{at}dt_bias"])
    gates = [stored[f"{at}in_proj_{part}.weight"] for part in "ba"]
    assert torch.equal(mixer.gates, torch.cat(gates))
