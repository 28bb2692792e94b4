"""Loading an EAGLE-3 head for its target: tensors, checks, kernels (spec 03 EGL-6 to EGL-9)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.logs import logger
from forerun.base.shown import listed
from forerun.contract.model import DraftFacts, ModelFacts, SharedTables, TappedModel, TargetModel
from forerun.models.decoder_build import DecoderBuilder
from forerun.models.drafts.eagle3_config import Eagle3Config, read_config, resolve_taps
from forerun.models.drafts.eagle3_model import (
    Condition,
    Eagle3Draft,
    FusedPairs,
    PairBlock,
    PairLayers,
    Parts,
    SeparateLayers,
)
from forerun.models.drafts.quantising import (
    CONDITION_FORMAT,
    FORMAT,
    quantised_layer,
    quantised_linear,
)
from forerun.models.drafts.vocabulary import check_columns, column_ids
from forerun.models.paper import PlannedWeights, Shapes
from forerun.models.tensor_files import Stored, open_tensors
from forerun.models.weights import Weights
from forerun.nn.fused_layers import FusedLayers, fused_layers
from forerun.nn.layer_weights import (
    AttentionWeights,
    LayerForm,
    LayerNorms,
    LayerWeights,
    MlpWeights,
)
from forerun.nn.linear import Linear, LinearWeights
from forerun.nn.norm import RMSNorm
from forerun.nn.placement import Placement
from forerun.nn.rope import Rope

FIRST_LAYER = ("midlayer.", "layers.0.")  # of the original repository, and of `speculators`
IGNORED = "verifier_"  # the target's own, which trainers keep

log = logger(__name__)


def load_eagle3(
    config: Mapping[str, object],
    files: Iterable[Path],
    target: TargetModel,
    placement: Placement,
    *,
    taps: Sequence[int] | None = None,
    prefix: str = "",
) -> Eagle3Draft:
    """Build the head that config.json describes, and have the target hand out what it takes.

    taps    streams that it reads whatever its config says, as `TappedModel.tap` counts
    prefix  what the names of its tensors begin with, and those of other models' do not

    Raises LoadError naming the field, tensor or number at fault, and both sides of a disagreement.
    """
    head, facts = read_config(config), target.facts
    tapped, resolved = _resolved(head, target, taps)
    stored = _tensors(files, prefix)
    ids = _column_ids(stored, head, facts)
    builder = _Builder(head, Weights(stored, config, placement), target, ids, len(resolved))
    draft = Eagle3Draft(builder.parts(), resolved)
    tapped.tap(resolved)
    *most, last = map(str, resolved)
    where = f"{', '.join(most)} and {last}" if most else last
    log.info("the draft head reads the streams after %s of %d layers", where, facts.layers)
    return draft


def check_eagle3(
    config: Mapping[str, object],
    shapes: Shapes,
    target: TargetModel,
    *,
    taps: Sequence[int] | None = None,
) -> None:
    """Whether `load_eagle3` would take the head, as far as shapes tell; with its errors.

    shapes  of the head's tensors, as `models.paper` has them
    target  on paper as well
    """
    head = read_config(config)
    _, resolved = _resolved(head, target, taps)
    kept = {name: shape for name, shape in shapes.items() if _is_kept(name)}
    _refuse_biases(kept)
    maps = [kept.pop(name, None) for name in ("d2t", "t2d")]
    check_columns(head.draft_vocabulary, target.facts.vocab_size, *maps)
    _Builder(head, PlannedWeights(config, kept), target, None, len(resolved)).parts()


def _resolved(
    head: Eagle3Config, target: TargetModel, taps: Sequence[int] | None
) -> tuple[TappedModel, tuple[int, ...]]:
    """The target as one that hands out the streams that the head reads, and which (EGL-9)."""
    _check_target(head, target.facts)
    if not isinstance(target, TappedModel):
        raise LoadError(
            "a draft head needs a model that hands out its residual streams, which this one does "
            "not; give it a small model as its draft"
        )
    return target, resolve_taps(head.taps if taps is None else taps, target.facts.layers)


def _check_target(head: Eagle3Config, facts: ModelFacts) -> None:
    """EGL-9."""
    pairs = (
        ("streams", head.target_hidden_size, facts.hidden_size, "wide"),
        ("a vocabulary", head.shape.vocab_size, facts.vocab_size, "tokens large"),
    )
    for what, ours, theirs, unit in pairs:
        if ours != theirs:
            raise LoadError(
                f"the draft head is for a model with {what} {ours} {unit}; this one's is {theirs}; "
                "give it a head that was trained for it"
            )


def _is_kept(name: str) -> bool:
    return not name.startswith(IGNORED)


def _refuse_biases(names: Iterable[str]) -> None:
    biases = sorted(name for name in names if name.endswith(".bias"))
    if biases:
        raise LoadError(f"the draft head has biases, {listed(biases)}; EAGLE-3 heads have none")


def _tensors(files: Iterable[Path], prefix: str) -> dict[str, Stored]:
    """Those of the head, by the names in its layout, which may share files with the target's."""
    own = {
        name.removeprefix(prefix): entry
        for name, entry in open_tensors(files).items()
        if name.startswith(prefix)
    }
    kept = {name: entry for name, entry in own.items() if _is_kept(name)}
    _refuse_biases(kept)
    for name, entry in kept.items():
        _check_numbers(name, entry.read())
    return kept


def _check_numbers(name: str, tensor: Tensor) -> None:
    """Weights fit the format that scales of quantised ones have, and a GPU may compute in."""
    if not tensor.is_floating_point() or tensor.element_size() < 2 or not tensor.numel():
        return
    ends = torch.stack(tensor.aminmax())
    fitting = ends.half() if name.endswith(".weight") else ends
    if not fitting.isfinite().all():
        low, high = ends.tolist()
        raise LoadError(
            f"tensor {name} of the draft head holds numbers from {low:.3g} to {high:.3g}, "
            "which cannot be computed with; train or export the head again"
        )


def _column_ids(stored: dict[str, Stored], head: Eagle3Config, facts: ModelFacts) -> Tensor | None:
    """Takes the two tensors that name the head's vocabulary."""
    d2t, t2d = (stored.pop(name, None) for name in ("d2t", "t2d"))
    columns, vocabulary = head.draft_vocabulary, facts.vocab_size
    read = [None if part is None else part.read() for part in (d2t, t2d)]
    ids = column_ids(columns, vocabulary, *read)
    whole = columns == vocabulary and torch.equal(ids, torch.arange(columns))
    return None if whole else ids.to(facts.device)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes the parts of one head."""

    head: Eagle3Config
    weights: Weights
    target: TargetModel
    ids: Tensor | None
    taps: int

    def parts(self) -> Parts:
        head, placement = self.head, self.weights.placement
        shape = head.shape
        first, others = self._first_layer(), self._other_layers()
        fused = self._fused([first, *others])
        layers: PairLayers
        stream = placement.dtype
        if fused is None:
            layers = self._separate(first, others)
        else:
            layers, stream = FusedPairs(fused), torch.float32
        embed, own_embedding = self._embedding(stream)
        condition = self._condition(stream, native=fused is not None)
        norm = self._norm("norm", shape.hidden_size)
        unembedding = self._unembedding(stream, native=fused is not None)
        self._refuse_surplus()
        held = (condition, layers, norm, unembedding)
        facts = DraftFacts(
            columns=head.draft_vocabulary,
            hidden_size=shape.hidden_size,
            taps_size=self.taps * head.target_hidden_size,
            step_size=shape.hidden_size,
            max_context=min(shape.max_context, head.rope.max_context or shape.max_context),
            weight_bytes=own_embedding + sum(part.nbytes for part in held),
            device=placement.device,
            dtype=placement.dtype,
        )
        return Parts(
            condition=condition,
            embed=embed,
            layers=layers,
            rope=Rope(head.rope, placement.device),
            norm=norm,
            head=unembedding,
            column_ids=self.ids,
            normed_output=head.norm_output,
            heads=[shape.heads] * shape.layers,
            facts=facts,
        )

    def _refuse_surplus(self) -> None:
        surplus = self.weights.surplus
        if surplus:
            raise LoadError(f"the draft head has {listed(surplus)}, which EAGLE-3 heads have not")

    @property
    def _dense(self) -> DecoderBuilder:
        return DecoderBuilder(self.head.shape, self.weights, "")

    @property
    def _form(self) -> LayerForm:
        return LayerForm(self.head.shape.heads.dim**-0.5, "silu", head_norms=self.head.head_norms)

    def _first_layer(self) -> LayerWeights:
        """EGL-4: queries, keys and values read twice the width."""
        shape, pick, dense = self.head.shape, self.weights.pick, self._dense
        at = self.weights.prefix("input_layernorm.weight", FIRST_LAYER)
        heads, hidden, inner = shape.heads, shape.hidden_size, shape.intermediate_size
        query, kv = heads.query * heads.dim, heads.kv * heads.dim
        sizes = {"q": query, "k": kv, "v": kv}
        qkv = [(f"{at}self_attn.{name}_proj", rows) for name, rows in sizes.items()]
        gate_up = [(f"{at}mlp.{name}_proj", inner) for name in ("gate", "up")]
        return LayerWeights(
            index=0,
            epsilon=shape.eps,
            norms=LayerNorms(
                tokens=dense.norm(f"{at}input_layernorm"),
                input=dense.norm(f"{at}hidden_norm"),
                mlp=dense.norm(f"{at}post_attention_layernorm"),
            ),
            mixer=AttentionWeights(
                heads=heads,
                scale=self._form.scale,
                window=None,
                rope=0,
                rotary_dim=None,
                norm=dense.head_norm(at) if self.head.head_norms else None,
                qkv=pick(2 * hidden, *qkv),
                gate=[],
            ),
            output=pick(query, (f"{at}self_attn.o_proj", hidden)),
            feed_forward=MlpWeights(
                self._form.activation,
                gate_up=pick(hidden, *gate_up),
                down=pick(inner, (f"{at}mlp.down_proj", hidden)),
            ),
            normed_residual=self.head.norm_before_residual,
        )

    def _other_layers(self) -> list[LayerWeights]:
        return [self._dense.layer(index, self._form) for index in range(1, self.head.shape.layers)]

    def _fused(self, layers: Sequence[LayerWeights]) -> FusedLayers | None:
        """Beside a target whose kernels have threads of their own; quantised for them."""
        placement = self.weights.placement
        if not self.target.facts.own_threads or not placement.kernels.cpu_kernels:
            return None
        quantised = [quantised_layer(layer) for layer in layers]
        return fused_layers(quantised, placement.dtype, placement.kernels)

    def _separate(self, first: LayerWeights, others: list[LayerWeights]) -> SeparateLayers:
        self.weights.settle(linear for layer in (first, *others) for linear in layer.linears)
        norms, mlp, dense = first.norms, first.feed_forward, self._dense
        assert norms.tokens is not None
        assert isinstance(mlp, MlpWeights)
        block = PairBlock(
            norms.tokens,
            norms.input,
            dense.attention(first),
            norms.mlp,
            dense.mlp(mlp),
            first.normed_residual,
        )
        blocks = [dense.block(layer) for layer in others]
        return SeparateLayers(block, blocks, self.weights.placement.dtype)

    def _condition(self, stream: torch.dtype, *, native: bool) -> Condition:
        head, width = self.head, self.head.target_hidden_size
        inputs = self.taps * width
        self._check_fc(inputs)
        (fc,) = self.weights.pick(inputs, ("fc", head.shape.hidden_size))
        return Condition(
            fc=self._linear(fc, stream, native=native),
            joined_norm=self._norm("input_norm", inputs) if head.norm_before_fc else None,
            tap_norms=[self._norm(f"fc_norm.{tap}", width) for tap in range(self.taps)]
            if head.fc_norm
            else (),
            dtype=stream,
        )

    def _check_fc(self, inputs: int) -> None:
        found = self.weights.columns("fc.weight")
        if found not in (None, inputs):
            raise LoadError(
                f"fc.weight takes {found} numbers, and {self.taps} of the target's streams have "
                f"{inputs} ({self.head.target_hidden_size} each); PARAMETER draft_layers names as "
                f"many layers as the head reads"
            )

    def _embedding(self, stream: torch.dtype) -> tuple[Callable[[Tensor], Tensor], int]:
        """Vectors of tokens in the dtype of the stream, and the bytes of a table of its own."""
        shape = self.head.shape
        if "embed_tokens.weight" in self.weights:
            rows, width = shape.vocab_size, shape.hidden_size
            table = self.weights.embedding("embed_tokens", rows, width, stream)
            return lambda ids: table(ids).to(stream), table.nbytes
        tables = self._shared("embed_tokens")
        return lambda ids: tables.embed(ids).to(stream), 0

    def _unembedding(self, stream: torch.dtype, *, native: bool) -> Linear:
        columns, hidden = self.head.draft_vocabulary, self.head.shape.hidden_size
        if "lm_head.weight" in self.weights:
            (picked,) = self.weights.pick(hidden, ("lm_head", columns))
        else:
            device = self.weights.placement.device
            ids = torch.arange(columns, device=device) if self.ids is None else self.ids
            rows = self._shared("lm_head").head_rows(ids).to(self.weights.placement.dtype)
            picked = LinearWeights(rows, None)
        return self._linear(picked, stream, native=native, head=True)

    def _shared(self, missing: str) -> SharedTables:
        """The target, whose table stands in for a tensor that the head has not (EGL-6)."""
        ours, theirs = self.head.shape.hidden_size, self.target.facts.hidden_size
        if ours != theirs:
            raise LoadError(
                f"the draft head has no {missing}.weight; it is {ours} wide, and the model's own, "
                f"which is {theirs} wide, cannot stand in"
            )
        if not isinstance(self.target, SharedTables):
            raise LoadError(
                f"the draft head has no {missing}.weight, nor has the model one to lend"
            )
        return self.target

    def _linear(
        self, picked: LinearWeights, stream: torch.dtype, *, native: bool, head: bool = False
    ) -> Linear:
        kernels = self.weights.placement.kernels
        if native:
            picked = quantised_linear(picked, FORMAT if head else CONDITION_FORMAT)
        return Linear(picked.weight, dtype=stream, kernels=kernels, fused=native and head)

    def _norm(self, path: str, width: int) -> RMSNorm:
        kernels = self.weights.placement.kernels
        weight = self.weights.take(f"{path}.weight", (width,))
        return RMSNorm(weight, self.head.shape.eps, uniform=True, kernels=kernels)
