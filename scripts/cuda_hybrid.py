"""Do hybrids, experts and every weight format give the same on CUDA as on the CPU?

    python scripts/cuda_hybrid.py

Tiny random checkpoints of the hybrid family and of qwen3_moe, written by transformers: greedy ids
of both devices agree by the near-tie rule (spec 06 WID-6), seeded ones are equal; on CUDA the same
holds with the checkpoint's own head drafting against without. Packed weights of every format:
the same values to the bit, and products within the rounding of float32.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests")]

import torch

from benchmarks.protocol import Agreement, agree, agreement, surroundings
from fixtures.qwen import hybrid_folder
from fixtures.tiny import Family, tiny_folder
from forerun.contract.model import CacheOptions, Caches
from forerun.engine.loaded import LoadedModel
from forerun.kernels.operands import AffineWeight, BlockScaledWeight
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.embedding import Embedding
from forerun.nn.linear import Linear
from forerun.nn.placement import Placement
from forerun.quant.codec import quantise
from forerun.quant.formats import GROUPS, QuantFormat
from forerun.quant.packed import PackedWeight
from forerun.runner.compose import assemble, prepare_device
from forerun.sampling.sampler import Sampler
from forerun.speculation.bound import BoundDrafters
from forerun.speculation.drafters.chain import ChainDrafter
from scripts.cuda_smoke import (
    CHUNK,
    CONTEXT,
    CUDA,
    GREEDY,
    NEW_TOKENS,
    SEEDED,
    Checkpoint,
    MarginSampler,
    ask,
    compare,
    in_words,
)

FAMILIES: tuple[Family, ...] = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3_moe")
HEADS = ("qwen3_5", "qwen3_5_moe")
PROMPT = [(5 * i * i + i) % 250 for i in range(90)]


def checkpoint(folder: Path, family: Family) -> Checkpoint:
    written = hybrid_folder(folder, family) if family in HEADS else tiny_folder(folder, family)
    config = json.loads((written / "config.json").read_text())
    return Checkpoint(family, config, sorted(written.glob("*.safetensors")))


def with_head(found: Checkpoint) -> LoadedModel:
    """On CUDA in float32, its own head bound."""
    with torch.inference_mode(False):
        placement = Placement(torch.float32, CUDA, KernelChoice())
        model = load_model(found.config, found.files, placement)
        head = model.self_draft()
        assert head is not None, "the checkpoint has a head"
        context = min(CONTEXT, model.facts.max_context)

        def bind(caches: Caches, sampler: Sampler) -> BoundDrafters:
            own = head.new_caches(CacheOptions(context))
            return BoundDrafters.of(ChainDrafter(head, caches, own, sampler))

        return replace(assemble(model, context, binding=bind), chunk=CHUNK)


def drafted(found: Checkpoint) -> tuple[Agreement, Agreement, float]:
    """Drafts against none: greedy by the near-tie rule, seeded; and the share of drafts taken."""
    plain = replace(found.load(CUDA, torch.float32), chunk=CHUNK)
    sampler = MarginSampler(plain)
    plain, drafting = replace(plain, sampler=sampler), with_head(found)
    greedy = ask(plain, PROMPT, NEW_TOKENS, GREEDY).tokens
    margins = sampler.margins[:]
    again = ask(drafting, PROMPT, NEW_TOKENS, GREEDY)
    drawn, redrawn = (ask(model, PROMPT, NEW_TOKENS, SEEDED).tokens for model in (plain, drafting))
    assert again.figures is not None
    assert again.figures.drafted_tokens > 0, "nothing was drafted"
    share = again.figures.accepted_tokens / again.figures.drafted_tokens
    return agreement(greedy, again.tokens, margins), agreement(drawn, redrawn, []), share


def on_cuda(weight: PackedWeight) -> PackedWeight:
    data: AffineWeight | BlockScaledWeight
    if isinstance(weight.data, AffineWeight):
        bias = None if weight.data.bias is None else weight.data.bias.cuda()
        words, scale = weight.data.words.cuda(), weight.data.scale.cuda()
        data = AffineWeight(words, scale, bias, weight.data.bits)
    else:
        data = replace(weight.data, words=weight.data.words.cuda(), scale=weight.data.scale.cuda())
    factor = None if weight.global_scale is None else weight.global_scale.cuda()
    return PackedWeight(data, weight.format, factor)


def formats() -> Iterator[dict[str, object]]:
    """Values, rows, products and gathered rows of each format."""
    seeded = torch.Generator().manual_seed(5)
    values, x = torch.randn(96, 256, generator=seeded), torch.randn(5, 256, generator=seeded)
    ids = torch.tensor([0, 95, 7, 7])
    for name, groups in GROUPS.items():
        for group in groups:
            weight = quantise(values, QuantFormat(name, group))
            there = on_cuda(weight)
            exact = weight.dequantise(torch.float32)
            same = torch.equal(there.dequantise(torch.float32).cpu(), exact)
            rows = torch.equal(there.rows(ids.cuda()).dequantise(torch.float32).cpu(), exact[ids])
            product = Linear(there, dtype=torch.float32)(x.cuda()).cpu()
            table = Embedding(there, dtype=torch.float32)(ids.cuda()).cpu()
            error = float((product - x @ exact.T).abs().max() / (x @ exact.T).abs().max())
            holds = same and rows and torch.equal(table, exact[ids]) and error < 1e-5
            yield {"format": name, "group": group, "product_error": error, "holds": holds}


def main() -> int:
    prepare_device(CUDA)
    runs: list[Agreement] = []
    seeded_runs: list[Agreement] = []
    rows: list[dict[str, object]] = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            found = checkpoint(Path(folder), family)
            greedy, seeded = compare(found)
            row: dict[str, object] = {"model": family, "greedy": in_words(greedy)}
            row["seeded"] = in_words(seeded)
            runs.append(greedy)
            seeded_runs.append(seeded)
            if family in HEADS:
                greedy, seeded, share = drafted(found)
                row |= {"drafted greedy": in_words(greedy), "drafted seeded": in_words(seeded)}
                row["accepted share"] = share
                runs.append(greedy)
                seeded_runs.append(seeded)
        rows.append(row)
        print(json.dumps(row), flush=True)
    weights = list(formats())
    holds = agree(runs) and all(run.holds for run in seeded_runs)
    holds = holds and all(row["holds"] for row in weights)
    print(json.dumps({"holds": holds, "models": rows, "formats": weights, **surroundings()}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
