"""The inline head against transformers' MtpModel in fp32: pairs, chains, drafts (QWN-13, 03 MTP).

1e-4 of the largest number of a row, as for the models themselves.
"""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import MtpCache

from fixtures.checkpoints import (
    CPU,
    edit_config,
    edit_tensors,
    loaded,
    relative_error,
)
from fixtures.qwen import hybrid_folder, mtp_model, wrapped_folder
from fixtures.tiny import Family, tiny_folder, tiny_model
from forerun.base.errors import LoadError
from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.model import CacheOptions, DraftModel, RankedLogits, TargetModel

TOLERANCE = 1e-4
OPTIONS = CacheOptions(context=64)
DRAFTS = 4
HYBRIDS: list[Family] = ["qwen3_5", "qwen3_5_moe", "qwen3_next"]


def drawn(seed: int, count: int = 30) -> list[int]:
    return torch.randint(0, 264, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def wanted_chain(family: Family, seed: int, tokens: list[int], **config: object) -> list[Tensor]:
    """Hidden states of all pairs of `tokens`, then of each greedy draft but the last."""
    model = tiny_model(family, seed=seed, **config)
    head = mtp_model(model, seed=seed)
    cache = MtpCache(config=head.config)
    with torch.inference_mode():
        thoughts = model.model(torch.tensor([tokens[:-1]])).last_hidden_state
        ids, states, start = torch.tensor([tokens[1:]]), [], 1
        for _ in range(DRAFTS):
            positions = torch.arange(start, start + ids.shape[1])[None]
            thoughts = head.forward_layer(0, thoughts, positions, cache, input_ids=ids)
            states.append(thoughts[0])
            start += ids.shape[1]
            thoughts = thoughts[:, -1:]
            ids = model.lm_head(thoughts).argmax(-1)
    return states


def the_head(model: TargetModel) -> DraftModel:
    head = model.self_draft()
    assert head is not None
    return head


def pairs(
    head: DraftModel, caches: list[LayerCache | None], tokens: Tensor, thoughts: Tensor
) -> Tensor:
    """[n, hidden] of n pairs that come next."""
    (cache,) = caches
    assert cache is not None
    batch = Batch.of(tokens, cache.offset, CPU, conditioning=head.condition(thoughts)[None])
    forward = head.forward(batch, (), caches)
    assert forward.conditioning is forward.hidden
    return forward.hidden[0]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("family", HYBRIDS)
@torch.inference_mode()
def test_pairs_and_a_chain_of_four_equal_transformers(
    tmp_path: Path, family: Family, seed: int
) -> None:
    """T1, QWN-13: the pairs of a prompt in one forward and one by one, then greedy drafts, each
    fed the hidden state before it."""
    tokens = drawn(seed)
    wanted = wanted_chain(family, seed, tokens)
    model = loaded(hybrid_folder(tmp_path, family, seed=seed))
    head = the_head(model)
    thoughts = model.forward(Batch.of(tokens[:-1], 0, CPU), None).conditioning[0]
    following = torch.tensor(tokens[1:])
    for sizes in ([len(following)], [1] * len(following)):
        caches = head.new_caches(OPTIONS)
        parts = zip(following.split(sizes), thoughts.split(sizes), strict=True)
        made = torch.cat([pairs(head, caches, *part) for part in parts])
        assert relative_error(made, wanted[0]) <= TOLERANCE
        for draft in wanted[1:]:
            last = made[-1:]
            token = head.unembed(last).argmax(-1)
            made = pairs(head, caches, token, last)
            assert relative_error(made, draft) <= TOLERANCE


@torch.inference_mode()
def test_the_head_ranks_and_unembeds_with_the_models_own(tmp_path: Path) -> None:
    """QWN-13, CON-4, CON-5: shared tables, whose bytes the model counts."""
    model = loaded(hybrid_folder(tmp_path, tie_word_embeddings=True))
    head, hidden = the_head(model), torch.randn(3, 64)
    assert head.column_ids is None
    assert isinstance(head, RankedLogits)
    assert torch.equal(head.unembed(hidden), model.unembed(hidden))
    assert head.best(hidden, 4) is None  # of a dense head, all of them cost no more
    tensors = tmp_path / "model.safetensors"
    whole = tensors.stat().st_size
    own = head.facts.weight_bytes
    assert whole - 16_384 < model.facts.weight_bytes + own < whole + 4096  # but for the header
    edit_tensors(tmp_path, lambda found: {n: t for n, t in found.items() if n.startswith("mtp.")})
    assert tensors.stat().st_size - 4096 < own <= tensors.stat().st_size


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_config_that_announces_a_head_without_tensors_has_none(
    tmp_path: Path, family: Family, caplog: pytest.LogCaptureFixture
) -> None:
    """CON-5, QWN-13: nothing is missing, and nothing is drawn at random."""
    folder = tiny_folder(tmp_path, family)
    edit_config(folder, mtp_num_hidden_layers=1)
    with caplog.at_level(logging.WARNING, "forerun"):
        assert loaded(folder).self_draft() is None
    assert not [record for record in caplog.records if record.name.startswith("forerun")]


@torch.inference_mode()
def test_a_wrapped_model_passes_its_head_on(tmp_path: Path) -> None:
    """F15, QWN-13: the names of the head have no container's prefix, and it drafts the same."""
    plain = the_head(loaded(hybrid_folder(tmp_path / "plain")))
    wrapped = the_head(loaded(wrapped_folder(tmp_path / "wrapped")))
    tokens, thoughts = torch.tensor([5, 6, 7]), torch.randn(3, 64)
    made = [pairs(head, head.new_caches(OPTIONS), tokens, thoughts) for head in (plain, wrapped)]
    assert torch.equal(*made)


def test_tensors_of_a_head_that_nobody_takes_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F15, CON-14: a second layer of the head; a head without the tensor that makes it one."""
    folder = hybrid_folder(tmp_path)
    edit_tensors(folder, lambda tensors: tensors | {"mtp.layers.1.x": torch.zeros(2)})
    with caplog.at_level(logging.WARNING, "forerun"):
        assert loaded(folder).self_draft() is not None
        assert "1 tensors of the checkpoint are not used: 'mtp.layers.1.x'" in caplog.text
        edit_tensors(
            folder, lambda tensors: {n: t for n, t in tensors.items() if n != "mtp.fc.weight"}
        )
        assert loaded(folder).self_draft() is None
        assert "mtp.layers.0.input_layernorm.weight" in caplog.text


@pytest.mark.parametrize(
    "tensor", ["mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.mlp.gate.weight"]
)
def test_half_a_head_is_an_error_that_names_the_tensor(tmp_path: Path, tensor: str) -> None:
    """QWN-13, F13"""
    folder = hybrid_folder(tmp_path, "qwen3_5_moe")
    edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if n != tensor})
    with pytest.raises(LoadError, match=f"no tensor {tensor}"):
        loaded(folder)


def test_a_head_with_a_table_of_its_own_is_refused(tmp_path: Path) -> None:
    """CON-14"""
    folder = hybrid_folder(tmp_path)
    edit_config(folder, mtp_use_dedicated_embeddings=True)
    with pytest.raises(LoadError, match="mtp_use_dedicated_embeddings to True"):
        loaded(folder)
