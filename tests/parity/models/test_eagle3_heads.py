"""EAGLE-3 heads against their published definition, one step and a chain (spec 03 EGL-10).

The tolerance is the project's bar for fp32: 1e-4 of the largest value of a position.
"""

import dataclasses

import pytest
import torch

from fixtures.checkpoints import loaded, placement, relative_error
from fixtures.eagle3 import Reference, TinyHead
from fixtures.tiny import tiny_folder
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions

TOLERANCE = 1e-4
TEXT, CHAIN = 23, 4

HEADS = {
    "original": TinyHead(layout="original"),
    "original, norm before fc": TinyHead(layout="original", norm_before_fc=True),
    "original, a norm a tap": TinyHead(layout="original", fc_norm=True, own_embedding=True),
    "speculators": TinyHead(),
    "normed residual": TinyHead(norm_before_residual=True),
    "norm before fc": TinyHead(norm_before_fc=True, norm_before_residual=True),
    "a norm a tap": TinyHead(fc_norm=True, taps=(1, 3)),
    "normed output": TinyHead(norm_output=True),
    "qwen3": TinyHead(kind="qwen3", norm_before_residual=True, norm_output=True, kv_heads=4),
    "another width": TinyHead(hidden=96, heads=3, kv_heads=1, dim=24, own_embedding=True),
    "three layers": TinyHead(layers=3, taps=(0, 2, 5, 6), fc_norm=True, norm_output=True),
    "the target's head": TinyHead(own_head=False),
    "the whole vocabulary": TinyHead(columns=264, mapped=False),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tiny_folder(tmp_path_factory.mktemp("target"), "llama", num_hidden_layers=6)
    return loaded(folder)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@torch.inference_mode()
def test_a_step_and_a_chain_are_those_of_the_definition(tmp_path, target, head):
    """EGL-1..6, EGL-10: pairs in two runs through the cache, then four steps of one, each fed the
    output of the step before it."""
    draft = head.load(tmp_path, target, placement())
    everything = torch.arange(head.vocabulary)
    reference = Reference(head, target.embed(everything), target.head_rows(everything))
    random = torch.Generator().manual_seed(5)
    taps = torch.randn(TEXT, len(head.taps) * head.target_hidden, generator=random)
    tokens = torch.randint(head.vocabulary, (TEXT,), generator=random)

    conditioning = draft.condition(taps)
    fed = reference.condition(taps)
    assert relative_error(conditioning, fed.float()) < TOLERANCE
    caches = draft.new_caches(CacheOptions(100))

    def run(ids, rows, start):
        batch = Batch.of(ids, start, torch.device("cpu"), conditioning=rows[None])
        return draft.forward(batch, [], caches)

    first = run(tokens[:9], conditioning[:9], 0)
    forward = run(tokens[9:], conditioning[9:], 9)
    hidden = torch.cat((first.hidden, forward.hidden), 1)[0]
    logits, outputs = reference.outputs(tokens, fed)
    assert relative_error(draft.unembed(hidden), logits.float()) < TOLERANCE
    for step in range(CHAIN):
        assert relative_error(forward.conditioning[0, -1:], outputs[-1:].float()) < TOLERANCE
        ours = draft.unembed(forward.hidden[0, -1:])
        assert relative_error(ours, logits[-1:].float()) < TOLERANCE
        drafted = head.ids[logits[-1].argmax()]
        tokens, fed = torch.cat((tokens, drafted[None])), torch.cat((fed, outputs[-1:]))
        logits, outputs = reference.outputs(tokens, fed)
        forward = run(drafted[None], forward.conditioning[0, -1:], TEXT + step)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@torch.inference_mode()
def test_the_flags_of_a_head_matter(target, head):
    """The reference tells heads apart: without a flag, or with another, its outputs differ."""
    everything = torch.arange(head.vocabulary)
    lent = target.embed(everything), target.head_rows(everything)
    tokens, fed = torch.arange(7), torch.randn(7, head.hidden).double()
    logits, outputs = Reference(head, *lent).outputs(tokens, fed)
    for flag in ("norm_before_residual", "norm_output"):
        other = dataclasses.replace(head, **{flag: not getattr(head, flag)})
        other_logits, other_outputs = Reference(other, *lent).outputs(tokens, fed)
        assert relative_error(other_outputs, outputs) > 100 * TOLERANCE
        assert (flag == "norm_output") == torch.equal(other_logits, logits)


@torch.inference_mode()
def test_the_target_hands_out_the_streams_that_a_head_reads(tmp_path, target):
    """EGL-3: at the top level ids count the layers passed, in `eagle_config` they name the layer
    that was left; in both layouts the head's own rows come out."""
    batch = Batch.of(list(range(11)), 0, torch.device("cpu"))
    rows = []
    for layout in ("speculators", "original"):
        draft = TinyHead(layout, taps=(1, 2, 5)).load(tmp_path / layout, target, placement())
        assert draft.taps == (1, 2, 5)
        rows.append(draft.condition(target.forward(batch, None).conditioning[0]))
    assert torch.equal(*rows)
    target.tap((5, 1, 2))
    other = draft.condition(target.forward(batch, None).conditioning[0])
    assert not torch.allclose(rows[0], other)
