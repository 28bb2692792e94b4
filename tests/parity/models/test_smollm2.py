"""The real SmolLM2-135M-Instruct against transformers, on the values that its blocks stand for."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from fixtures.checkpoints import CPU, loaded, logits, relative_error
from fixtures.smollm2 import smollm2
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, TargetModel
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.store.stored import StoredModel

pytestmark = pytest.mark.model

PROMPT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
NEW_TOKENS = 200
NEAR_TIE = 1e-3  # of the largest logit (WID-6)
GROUP = 32


@pytest.fixture(scope="module")
def stored() -> StoredModel:
    return smollm2()


@pytest.fixture(scope="module")
def prompt(stored: StoredModel) -> list[int]:
    layer = stored.json_layer("tokenizer.json")
    assert layer is not None
    ids = Tokenizer.from_buffer(stored.read(layer)).encode(PROMPT).ids
    assert isinstance(ids, list)
    return ids


@pytest.fixture(scope="module")
def folder(stored: StoredModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The model as a folder of dense float32 tensors, dequantised here and not by our codec."""
    path = tmp_path_factory.mktemp("smollm2")  # half a gigabyte, so it goes when we are done
    tensors: dict[str, Tensor] = {}
    for layer in stored.tensors:
        parts = load_file(stored.file(layer))
        (name,) = [part for part in parts if f"{part}.scale" in parts] or [*parts]
        tensors[name] = _values(name, parts)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(stored.json("config.json")))
    yield path
    shutil.rmtree(path)


def _values(name: str, parts: dict[str, Tensor]) -> Tensor:
    if f"{name}.scale" not in parts:
        return parts[name].float()
    scale, bias = (parts[f"{name}.{part}"].float()[..., None] for part in ("scale", "bias"))
    octets = parts[name].numpy().view(np.uint8)
    if octets.shape[1] != scale.shape[1] * GROUP:  # two columns an octet, the lower one first
        octets = np.stack((octets & 15, octets >> 4), axis=-1).reshape(len(octets), -1)
    quantised = torch.from_numpy(octets.astype(np.float32)).view(*scale.shape[:2], GROUP)
    return (quantised * scale + bias).flatten(1)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> LlamaForCausalLM:
    fields = json.loads((folder / "config.json").read_text())
    model = LlamaForCausalLM(LlamaConfig(**fields)).float().eval()
    stored = load_file(folder / "model.safetensors")
    tensors = {name: each for name, each in stored.items() if not name.startswith("draft.")}
    missing, surplus = model.load_state_dict(tensors, strict=False)
    assert missing == ["lm_head.weight"]  # tied
    assert not surplus
    model.tie_weights()
    return model


def greedy(model: TargetModel, prompt: list[int]) -> list[int]:
    """NEW_TOKENS tokens after `prompt`, each forwarded alone."""
    caches = model.new_caches(CacheOptions(context=len(prompt) + NEW_TOKENS))
    tokens, start, batch = [*prompt], 0, prompt
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            hidden = model.forward(Batch.of(batch, start, CPU), caches).hidden
            start += len(batch)
            batch = [int(model.unembed(hidden[:, -1]).argmax())]
            tokens += batch
    return tokens


def test_greedy_text_equals_transformers(
    folder: Path, theirs: LlamaForCausalLM, prompt: list[int]
) -> None:
    """WID-6: 200 tokens; a first difference may only be a near-tie.

    One forward of transformers over our tokens is its own greedy run as long as it agrees.
    """
    tokens = greedy(loaded(folder), prompt)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([tokens]), logits_to_keep=NEW_TOKENS + 1).logits[0, :-1]
    drawn = torch.tensor(tokens[-NEW_TOKENS:])
    different = (wanted.argmax(-1) != drawn).nonzero()
    if len(different):
        row = wanted[int(different[0])]
        margin = float(row.max() - row[drawn[different[0]]])
        assert margin < NEAR_TIE * float(row.abs().max()), int(different[0])


def test_packed_weights_give_the_same_logits(
    stored: StoredModel, theirs: LlamaForCausalLM, prompt: list[int]
) -> None:
    """LIN-1, LIN-2, LIN-5, LIN-12, LOD-1: the store's int4 and int8 weights, fused as they are."""
    placement = Placement(torch.float32, CPU, KernelChoice(cpu_kernels=False))
    files = [stored.file(layer) for layer in stored.tensors]
    model = load_model(stored.json("config.json"), files, placement)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([prompt])).logits[0]
    assert relative_error(logits(model, prompt), wanted) <= 1e-4
