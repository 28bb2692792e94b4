"""The tensors of the family's layers, in every naming, as the weights that layers are made of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.models.decoder_build import DecoderBuilder
from forerun.models.experts import pick_experts
from forerun.models.qwen3_5.config import HybridConfig
from forerun.models.weights import Weights
from forerun.nn.layer_weights import (
    AttentionWeights,
    DeltaWeights,
    ExpertWeights,
    LayerForm,
    LayerWeights,
    MlpWeights,
)
from forerun.nn.linear import LinearWeights, chosen_rows
from forerun.nn.norm import RMSNorm
from forerun.nn.recurrence import DeltaHeads

SPLIT = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
GROUPED = ("in_proj_qkvz", "in_proj_ba")  # key head by key head
CONV = ".linear_attn.conv1d.weight"


def zero_centred(weights: Weights) -> bool:
    """Whether norm weights are stored minus one (QWN-5). Ask before anything is picked.

    They are where a checkpoint is as its publisher wrote it: what converts them for MLX adds the
    one, turns the convolution round and drops the head.
    """
    for name in weights.surplus:
        if "mtp." in name:
            return True
        if name.endswith(CONV):
            shape = weights.stored(name).shape
            if len(shape) == 3 and shape[-1] != 1:
                return True
    return False


@dataclass(frozen=True, slots=True)
class HybridBuilder:
    """Picks the layers of one checkpoint."""

    config: HybridConfig
    builder: DecoderBuilder

    @property
    def form(self) -> LayerForm:
        """Of layers that attend."""
        config = self.config
        dim = config.shape.heads.dim
        return LayerForm(
            dim**-0.5,
            config.activation,
            biased=config.biased,
            head_norms=True,
            rotary_dim=config.rope.dim if config.rope.dim < dim else None,
        )

    def layers(self) -> list[LayerWeights]:
        """Those of the model."""
        config, at = self.config, self.builder.at
        return [
            self.layer(index, at(index), attends=attends, sparse=sparse)
            for index, (attends, sparse) in enumerate(
                zip(config.attends, config.sparse, strict=True)
            )
        ]

    def layer(self, index: int, at: str, *, attends: bool, sparse: bool) -> LayerWeights:
        """The layer whose tensors stand under `at`."""
        builder, shape = self.builder, self.config.shape
        mixer = self._attention(at) if attends else self._delta(f"{at}linear_attn.")
        path, inputs = f"{at}self_attn.o_proj", shape.heads.query * shape.heads.dim
        if isinstance(mixer, DeltaWeights):
            path, inputs = f"{at}linear_attn.out_proj", mixer.heads.widths[2]
        return LayerWeights(
            index=index,
            epsilon=shape.eps,
            norms=builder.norms(at, self.form),
            mixer=mixer,
            output=builder.weights.pick(
                inputs, (path, shape.hidden_size), biased=attends and self.form.biased
            ),
            feed_forward=self._feed_forward(at, sparse=sparse),
        )

    def _attention(self, at: str) -> AttentionWeights:
        """QWN-6: rows of a head's queries and of its gates take turns in the tensor."""
        heads, weights = self.config.shape.heads, self.builder.weights
        hidden, query, kv = (
            self.config.shape.hidden_size,
            heads.query * heads.dim,
            heads.kv * heads.dim,
        )
        biased, attention = self.form.biased, f"{at}self_attn."
        (both,) = weights.pick(hidden, (f"{attention}q_proj", 2 * query), biased=biased)
        rows = _rows(weights, 2 * query).view(heads.query, 2, heads.dim)
        queries, gates = (chosen_rows(both, rows[:, part].flatten()) for part in (0, 1))
        keys_values = (f"{attention}k_proj", kv), (f"{attention}v_proj", kv)
        return AttentionWeights(
            heads=heads,
            scale=self.form.scale,
            window=None,
            rope=0,
            rotary_dim=self.form.rotary_dim,
            norm=self.builder.head_norm(at),
            qkv=[queries, *weights.pick(hidden, *keys_values, biased=biased)],
            gate=[gates],
        )

    def _delta(self, at: str) -> DeltaWeights:
        """QWN-7 to QWN-10."""
        heads, weights = self.config.delta, self.builder.weights
        assert heads is not None, "the config has a recurrent layer"
        inputs, gates = self._projections(at, heads)
        values = heads.value_heads
        kernels = weights.placement.kernels
        norm = weights.take(f"{at}norm.weight", (heads.value_dim,), torch.float32)
        return DeltaWeights(
            heads=heads,
            inputs=inputs,
            gates=gates,
            conv_weight=self._conv_weight(at, sum(heads.widths)),
            conv_bias=self._conv_bias(at, sum(heads.widths)),
            log_decay=weights.take(f"{at}A_log", (values,), torch.float32),
            step_bias=weights.take(f"{at}dt_bias", (values,), torch.float32),
            norm=RMSNorm(norm, self.config.shape.eps, kernels=kernels),  # never shifted (QWN-5)
        )

    def _projections(self, at: str, heads: DeltaHeads) -> tuple[list[LinearWeights], Tensor]:
        """Rows of queries, keys, values and output gates; rows of beta and alpha, as values."""
        weights, hidden = self.builder.weights, self.config.shape.hidden_size
        channels, values = sum(heads.widths), heads.widths[2]
        if naming(weights, at) == SPLIT:
            inputs = weights.pick(
                hidden, (f"{at}in_proj_qkv", channels), (f"{at}in_proj_z", values)
            )
            parts = [
                weights.values(f"{at}in_proj_{part}", heads.value_heads, hidden) for part in "ba"
            ]
            return inputs, torch.cat(parts)
        (grouped,) = weights.pick(hidden, (f"{at}in_proj_qkvz", channels + values))
        own = values // heads.key_heads
        sizes = [heads.key_dim, heads.key_dim, own, own]
        which = ungrouped(_rows(weights, channels + values), heads.key_heads, sizes)
        mixed = weights.values(f"{at}in_proj_ba", 2 * heads.value_heads, hidden)
        repeats = heads.value_heads // heads.key_heads
        decisions = ungrouped(
            _rows(weights, 2 * heads.value_heads), heads.key_heads, [repeats, repeats]
        )
        return [chosen_rows(grouped, which)], mixed[decisions]

    def _conv_weight(self, at: str, channels: int) -> Tensor:
        """[channels, taps], from any of three forms (QWN-8)."""
        weights, name, taps = self.builder.weights, f"{at}conv1d.weight", self.config.taps
        shape = weights.stored(name).shape
        forms = ((channels, 1, taps), (channels, taps, 1), (channels, taps))
        wanted = shape if shape in forms else forms[0]
        return weights.take(name, wanted, torch.float32).reshape(channels, taps)

    def _conv_bias(self, at: str, channels: int) -> Tensor | None:
        weights, name = self.builder.weights, f"{at}conv1d.bias"
        return weights.take(name, (channels,), torch.float32) if name in weights else None

    def _feed_forward(self, at: str, *, sparse: bool) -> MlpWeights | ExpertWeights:
        experts, builder = self.config.experts, self.builder
        if experts is None or not sparse:
            return builder.mlp_weights(at, self.form)
        return pick_experts(builder.weights, f"{at}mlp.", experts, self.config.shape.hidden_size)


def naming(weights: Weights, at: str) -> tuple[str, ...]:
    """SPLIT or GROUPED, whichever a layer's projections have, all of them (QWN-7)."""
    found = {part: f"{at}{part}.weight" in weights for part in (*SPLIT, *GROUPED)}
    present = [part for part, there in found.items() if there]
    names = GROUPED if set(present) & set(GROUPED) else SPLIT
    surplus = [part for part in present if part not in names]
    if surplus:
        raise LoadError(
            f"{at} has {', '.join(present)}: the same projections in two forms; keep "
            f"{', '.join(SPLIT)} or {', '.join(GROUPED)}"
        )
    missing = [part for part in names if not found[part]]
    if missing:
        raise LoadError(
            f"the checkpoint has no tensor {at}{missing[0]}.weight, which belongs to "
            f"{', '.join(names)}"
        )
    return names


def ungrouped(rows: Tensor, groups: int, sizes: list[int]) -> Tensor:
    """Rows that are grouped, each group the parts of these sizes, as part after part."""
    parts = rows.view(groups, -1).split_with_sizes(sizes, 1)
    return torch.cat([part.flatten() for part in parts])


def _rows(weights: Weights, count: int) -> Tensor:
    return torch.arange(count, device=weights.placement.device)
