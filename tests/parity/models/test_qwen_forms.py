"""One hybrid model in every form that it is stored in: the same numbers (QWN-3, 5, 7, 8, 12).

Forms are made of what transformers writes. Logits are equal to 1e-5 of the largest: products of a
mapped tensor have other last bits where it begins at another address.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.checkpoints import edit_tensors, loaded, logits, placement, read_config
from fixtures.qwen import (
    Tensors,
    converted_for_mlx,
    hybrid_folder,
    renamed,
    stacked_experts,
)
from fixtures.tiny import Family, tiny_folder
from forerun.base.errors import LoadError
from forerun.models.load import load_model

TOKENS = list(range(100, 130))


def answers(folder: Path) -> Tensor:
    return logits(loaded(folder), TOKENS)


def assert_near(ours: Tensor, wanted: Tensor) -> None:
    assert float((ours - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


def without_head(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}


def scaled(tensors: Tensors, part: str) -> Tensors:
    return {name: 2 * tensor if part in name else tensor for name, tensor in tensors.items()}


# --- whether norms are stored minus one


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "qwen3_next"])
def test_four_checkpoints_of_one_model_agree_on_the_norms(tmp_path: Path, family: Family) -> None:
    """T2, QWN-5: with a head; without, which leaves the shape of the convolution to tell; as
    converted for MLX, whose norms hold the one already; and in the naming of Qwen3-Next."""
    folder = hybrid_folder(tmp_path, family)
    wanted = answers(folder)
    edit_tensors(folder, without_head)
    assert_near(answers(folder), wanted)
    edit_tensors(folder, converted_for_mlx)
    assert_near(answers(folder), wanted)


def test_a_head_alone_tells_that_norms_are_zero_centred(tmp_path: Path) -> None:
    """QWN-5: whatever the convolution looks like."""
    folder = hybrid_folder(tmp_path)
    wanted = answers(folder)

    def turned(tensors: Tensors) -> Tensors:
        return {
            n: t.transpose(1, 2).contiguous() if "conv1d" in n else t for n, t in tensors.items()
        }

    edit_tensors(folder, turned)
    assert_near(answers(folder), wanted)


def test_norms_of_a_text_model_without_any_sign_are_as_they_are(tmp_path: Path) -> None:
    """QWN-5: neither a head nor a convolution of three dimensions."""
    folder = tiny_folder(tmp_path, "qwen3_5")
    wanted = answers(folder)

    def flat(tensors: Tensors) -> Tensors:
        plain = {n: t.squeeze(1) if "conv1d" in n else t for n, t in tensors.items()}
        norms = ("layernorm.weight", "q_norm.weight", "k_norm.weight", "model.norm.weight")
        return {n: t + 1 if n.endswith(norms) else t for n, t in plain.items()}

    edit_tensors(folder, flat)
    assert_near(answers(folder), wanted)


def test_the_norm_of_a_recurrent_result_is_never_shifted(tmp_path: Path) -> None:
    """QWN-5, QWN-10: twice its weight and half of the projection behind it make no difference,
    which they would if one was added to the former."""
    folder = hybrid_folder(tmp_path)
    wanted = answers(folder)

    def moved(tensors: Tensors) -> Tensors:
        doubled = scaled(tensors, "linear_attn.norm")
        return {n: t / 2 if "linear_attn.out_proj" in n else t for n, t in doubled.items()}

    edit_tensors(folder, moved)
    assert_near(answers(folder), wanted)


# --- projections of recurrent layers


def split(tensors: Tensors) -> Tensors:
    """Of the sizes in `fixtures.tiny`: 2 key heads of 16, 4 value heads of 12."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        before, found, _ = name.partition("in_proj_qkvz.weight")
        if found:
            queries, keys, values, gates = tensor.view(2, 80, -1).split([16, 16, 24, 24], 1)
            parts = [part.flatten(0, 1) for part in (queries, keys, values)]
            made[f"{before}in_proj_qkv.weight"] = torch.cat(parts)
            made[f"{before}in_proj_z.weight"] = gates.flatten(0, 1).contiguous()
            continue
        before, found, _ = name.partition("in_proj_ba.weight")
        if found:
            beta, alpha = tensor.view(2, 4, -1).split([2, 2], 1)
            made[f"{before}in_proj_b.weight"] = beta.flatten(0, 1).contiguous()
            made[f"{before}in_proj_a.weight"] = alpha.flatten(0, 1).contiguous()
            continue
        made[name] = tensor
    return made


def test_native_and_split_projections_are_one_model(tmp_path: Path) -> None:
    """T3, QWN-7"""
    folder = hybrid_folder(tmp_path, "qwen3_next")
    wanted = answers(folder)
    edit_tensors(folder, split)
    assert_near(answers(folder), wanted)


def test_projections_in_both_forms_are_an_error(tmp_path: Path) -> None:
    """QWN-7"""
    folder = hybrid_folder(tmp_path, "qwen3_next")
    edit_tensors(folder, lambda tensors: split(tensors) | tensors)
    with pytest.raises(LoadError, match=r"layers\.0\.linear_attn\. has in_proj_qkv, .*two forms"):
        loaded(folder)


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("qwen3_5", "in_proj_z"),
        ("qwen3_5", "in_proj_a"),
        ("qwen3_5", "in_proj_qkv"),
        ("qwen3_next", "in_proj_ba"),
        ("qwen3_next", "in_proj_qkvz"),
    ],
)
def test_an_incomplete_set_of_projections_is_named(
    tmp_path: Path, family: Family, part: str
) -> None:
    """QWN-7"""
    folder = hybrid_folder(tmp_path, family)
    edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if part not in n})
    with pytest.raises(LoadError, match=rf"no tensor model\.layers\.0\.linear_attn\.{part}\.wei"):
        loaded(folder)


# --- the convolution


@pytest.mark.parametrize(
    "form", [lambda t: t.transpose(1, 2).contiguous(), lambda t: t.squeeze(1)], ids=["ck1", "ck"]
)
def test_a_convolution_in_any_form(tmp_path: Path, form: Callable[[Tensor], Tensor]) -> None:
    """QWN-8: [C, K, 1] and [C, K] beside [C, 1, K]."""
    folder = hybrid_folder(tmp_path)
    wanted = answers(folder)
    edit_tensors(folder, lambda all: {n: form(t) if "conv1d" in n else t for n, t in all.items()})
    assert_near(answers(folder), wanted)


def test_a_convolution_of_another_size_is_named_with_both_shapes(tmp_path: Path) -> None:
    """QWN-8, F13"""
    folder = hybrid_folder(tmp_path, linear_conv_kernel_dim=3)
    config = read_config(folder) | {"linear_conv_kernel_dim": 4}
    with pytest.raises(LoadError, match=r"conv1d\.weight has shape \[112, 1, 3\] .* \[112, 1, 4\]"):
        load_model(config, [folder / "model.safetensors"], placement())


# --- experts


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_moe"])
@pytest.mark.parametrize("suffix", [".weight", ""])
@pytest.mark.parametrize("container", ["experts", "switch_mlp"])
@pytest.mark.parametrize("together", [True, False])
def test_experts_one_by_one_stacked_and_with_gate_and_up_together(
    tmp_path: Path, family: Family, container: str, suffix: str, together: bool
) -> None:
    """T4, QWN-12, Q3M-2, LIN-10, TEN-3: in numeric order, eleven of them."""
    folder = tiny_folder(tmp_path, family, num_experts=11)
    wanted = answers(folder)

    def change(tensors: Tensors) -> Tensors:
        made = stacked_experts(tensors, container, ("gate_proj", "up_proj", "down_proj"))
        made = renamed(made, lambda n: n.removesuffix(".weight") + suffix if container in n else n)
        if not together:
            return made
        gates = [name for name in made if f"{container}.gate_proj" in name]
        for name in gates:
            up = name.replace("gate_proj", "up_proj")
            made[name.replace("gate_proj", "gate_up_proj")] = torch.cat(
                (made.pop(name), made.pop(up)), 1
            )
        return made

    edit_tensors(folder, change)
    assert_near(answers(folder), wanted)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("mlp.experts.3.up_proj", r"mlp\.experts\.3\.up_proj"),
        ("mlp.experts.0.down_proj", r"mlp\.experts\.0\.down_proj"),
        ("mlp.gate.", r"mlp\.gate\.weight"),
        ("mlp.shared_expert.up_proj", r"mlp\.shared_expert\.up_proj"),
        ("mlp.shared_expert_gate", r"mlp\.shared_expert_gate"),
    ],
)
def test_a_missing_part_of_a_mixture_is_named(tmp_path: Path, part: str, named: str) -> None:
    """QWN-12, F13"""
    folder = tiny_folder(tmp_path, "qwen3_5_moe")
    edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if part not in n})
    with pytest.raises(LoadError, match=rf"no tensor model\.layers\.0\.{named}"):
        loaded(folder)


# --- where the text model lies


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("language_model.model.", "language_model.lm_head"),
        ("language_model.", "lm_head"),
        ("language_model.", "language_model.lm_head"),
        ("model.language_model.model.", "model.language_model.lm_head"),
        ("model.language_model.", "lm_head"),
        ("model.language_model.", "model.lm_head"),
    ],
)
def test_the_text_model_is_found_under_any_prefix(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str, head: str, tied: bool
) -> None:
    """QWN-3, QWN-13: and the head, tied or not; `mtp.` has no prefix at all."""
    folder = hybrid_folder(tmp_path, tie_word_embeddings=tied)
    wanted = answers(folder)

    def moved(name: str) -> str:
        return name.replace("lm_head", head) if "lm_head" in name else change(name)

    def change(name: str) -> str:
        return prefix + name.removeprefix("model.") if name.startswith("model.") else name

    edit_tensors(folder, lambda tensors: renamed(tensors, moved))
    with caplog.at_level(logging.WARNING, "forerun"):
        model = loaded(folder)
    assert_near(logits(model, TOKENS), wanted)
    assert model.self_draft() is not None
    assert not [record for record in caplog.records if record.name.startswith("forerun")]
