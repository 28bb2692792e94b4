"""EAGLE-3 heads in C++, beside a target whose layers run there, too (06 KER-1, WID; 03 EGL-10).

A head's weights are rounded to eight bits for that. Against the same rounded weights in plain torch
what differs is the rounding of activations and of keys and values.
"""

import dataclasses

import pytest
import torch

from fixtures.checkpoints import placement, relative_error
from fixtures.eagle3 import Reference, TinyHead
from fixtures.native_kernels import native_library
from fixtures.quantised import quantised
from forerun.contract.batch import Batch
from forerun.contract.drafter import DraftRequest
from forerun.contract.model import CacheOptions
from forerun.models.drafts.eagle3_model import FusedPairs, SeparateLayers
from forerun.models.drafts.quantising import CONDITION_FORMAT, FORMAT
from forerun.quant.codec import quantise
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.drafters.chain import ChainDrafter

ROUNDED = 2e-2  # of the largest logit: bfloat16 keys and values, a few steps long
TEXT = 37
HEADS = {
    "original": TinyHead("original", dim=32, heads=3, kv_heads=1),
    "flags": TinyHead(dim=32, norm_before_residual=True, norm_before_fc=True, norm_output=True),
    "qwen3": TinyHead(kind="qwen3", dim=32, layers=2, fc_norm=True, own_embedding=True),
    "the target's head": TinyHead(dim=32, own_head=False),
}
EVERY = pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    native_library()
    made = quantised(tmp_path_factory.mktemp("target"), "llama", num_hidden_layers=7)
    model = made.load(torch.bfloat16)
    assert model.facts.own_threads
    return model


class Rounded(TinyHead):
    """The same head in bfloat16, its matrices the values that their codes stand for."""

    def tensors(self):
        made = super().tensors()
        for name, part in made.items():
            if part.is_floating_point():
                part = part.bfloat16()
                matrix = part.dim() == 2 and name != "embed_tokens.weight"
                form = CONDITION_FORMAT if name == "fc.weight" else FORMAT
                made[name] = rounded(part, form) if matrix else part.float()
        return made


def rounded(weight, form=FORMAT):
    return quantise(weight, form).dequantise(torch.float32)


def run(draft, caches, tokens, rows, start):
    batch = Batch.of(tokens, start, CPU, conditioning=rows[None])
    return draft.forward(batch, [], caches)


def inputs(head):
    random = torch.Generator().manual_seed(4)
    taps = torch.randn(TEXT, len(head.taps) * head.target_hidden, generator=random)
    return torch.randint(head.vocabulary, (TEXT,), generator=random), taps


def native(head, folder, target):
    draft = head.load(folder, target, placement(torch.bfloat16))
    assert isinstance(draft._parts.layers, FusedPairs)
    return draft


@EVERY
@torch.inference_mode()
def test_a_head_in_cpp_is_its_definition(tmp_path, target, head):
    """EGL-4, EGL-5: to the rounding of what it holds."""
    draft = native(head, tmp_path, target)
    everything = torch.arange(head.vocabulary)
    reference = Reference(
        Rounded(**{f.name: getattr(head, f.name) for f in dataclasses.fields(head)}),
        target.embed(everything).float(),
        rounded(target.head_rows(everything)),
    )
    tokens, taps = inputs(head)
    conditioning, fed = draft.condition(taps), reference.condition(taps)
    assert relative_error(conditioning, fed.float()) < 2e-3
    caches = draft.new_caches(CacheOptions(100))
    forward = run(draft, caches, tokens, conditioning, 0)
    logits, outputs = reference.outputs(tokens, fed)
    assert relative_error(forward.conditioning[0], outputs.float()) < ROUNDED
    ours = draft.unembed(forward.hidden[0])
    assert relative_error(ours, logits.float()) < ROUNDED
    best = draft.best(forward.hidden[0], 3)
    assert torch.equal(best.values, ours.topk(3).values)
    assert torch.equal(ours.gather(1, best.ids), best.values)


@EVERY
@torch.inference_mode()
def test_pairs_give_the_same_bits_in_runs_of_any_length(tmp_path, target, head):
    """06 WID-1: a head's caches and outputs do not depend on how its pairs were flushed."""
    draft = native(head, tmp_path, target)
    tokens, taps = inputs(head)
    made = []
    for width in (1, 3, 16, TEXT):
        caches, parts = draft.new_caches(CacheOptions(100)), []
        for first in range(0, TEXT, width):
            rows = draft.condition(taps[first : first + width])
            fed = rows.clone()
            forward = run(draft, caches, tokens[first : first + width], rows, first)
            assert torch.equal(rows, fed), "what a step is fed stays as it is"
            parts.append(forward.conditioning[0])
        history = [cache.view() for cache in caches]
        held = [part for rows in history for part in (rows.keys, rows.values)]
        made.append([torch.cat(parts), *(part.float() for part in held)])
    for other in made[1:]:
        for ours, theirs in zip(made[0], other, strict=True):
            assert torch.equal(ours, theirs)


@torch.inference_mode()
def test_a_chain_drafter_runs_on_it(tmp_path, target):
    """A round's worth of drafts, greedy, with penalties and sampled: by best logits and by all."""
    draft = native(HEADS["original"], tmp_path, target)
    tokens, taps = inputs(HEADS["original"])
    columns = set(draft.column_ids.tolist())
    for options in (
        SamplingOptions(temperature=0.0, repeat_penalty=1.0),
        SamplingOptions(temperature=0.0, repeat_penalty=1.2),
        SamplingOptions(temperature=0.8, top_k=20, seed=3),
        SamplingOptions(temperature=0.8, top_k=0, logit_bias=((5, 1.0),)),
    ):
        sampler = Sampler(vocab_size=264, context_length=100, device=CPU)
        sampler.add(0, options, tokens.tolist())
        drafter = ChainDrafter(draft, [], draft.new_caches(CacheOptions(100)), sampler)
        session = drafter.open(DraftRequest((), 0))
        session.committed(tokens.tolist(), taps, 0)
        first, again = session.propose(7, 5), session.propose(7, 5)
        assert first.host_tokens == again.host_tokens
        assert set(first.host_tokens) <= columns
        session.close()
        assert drafter.offset == TEXT


@torch.inference_mode()
def test_odd_widths_run_as_separate_operations(tmp_path, target):
    """Sixteen numbers a head are no multiple of the kernel's; the log says so."""
    draft = TinyHead().load(tmp_path, target, placement(torch.bfloat16))
    assert isinstance(draft._parts.layers, SeparateLayers)
    tokens, taps = inputs(TinyHead())
    caches = draft.new_caches(CacheOptions(100))
    forward = run(draft, caches, tokens, draft.condition(taps), 0)
    assert draft.unembed(forward.hidden[0]).isfinite().all()
