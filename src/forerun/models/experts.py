"""Mixtures of experts: the fields and the tensors, however they are stored (QWN-12, Q3M)."""

from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.base.logs import logger
from forerun.models.config import ConfigReader
from forerun.models.packed_weights import SCALE
from forerun.models.projection import fusable_runs
from forerun.models.weights import Weights
from forerun.nn.layer_weights import ExpertWeights, MlpWeights
from forerun.nn.linear import LinearWeights, stack_parts
from forerun.quant.packed import PackedWeight, Weight, fuse_rows

log = logger(__name__)

STACKS = ("experts.", "switch_mlp.")


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The experts of the layers that have some."""

    count: int
    top: int  # experts a token
    renormalised: bool
    inner: int
    shared_inner: int | None  # of the expert that every token takes; None: there is none
    activation: str


def read_experts(
    config: ConfigReader, activation: str, *, shared: bool = True
) -> ExpertShape | None:
    """None where the config has no experts. shared: the family may have an expert for all."""
    count = config.integer("num_experts", config.integer("num_local_experts", 0, low=0), low=0)
    if not count:
        return None
    top = config.integer("num_experts_per_tok")
    if top > count:
        raise LoadError(
            f"config.json: num_experts_per_tok {top} is more than the {count} experts there are"
        )
    shared_inner = config.integer("shared_expert_intermediate_size", 0, low=0) if shared else 0
    return ExpertShape(
        count=count,
        top=top,
        renormalised=config.flag("norm_topk_prob"),
        inner=config.integer("moe_intermediate_size"),
        shared_inner=shared_inner or None,
        activation=activation,
    )


def sparse_layers(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers have experts, if the model has (Q3M-1)."""
    dense, step = config.integers("mlp_only_layers") or (), config.integer("decoder_sparse_step")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))


def pick_experts(weights: Weights, at: str, shape: ExpertShape, hidden: int) -> ExpertWeights:
    """The tensors of one layer. at: "model.layers.3.mlp."."""
    picked = _Picker(weights, at, shape, hidden)
    shared = picked.shared()
    return ExpertWeights(
        activation=shape.activation,
        experts=shape.count,
        top=shape.top,
        renormalised=shape.renormalised,
        router=weights.values(f"{at}gate", shape.count, hidden),
        gate_up=picked.stack(("gate_proj", "up_proj"), shape.inner, hidden, joined="gate_up_proj"),
        down=picked.stack(("down_proj",), hidden, shape.inner),
        shared=shared,
        shared_gate=None
        if shared is None
        else weights.values(f"{at}shared_expert_gate", 1, hidden)[0],
    )


@dataclass(frozen=True, slots=True)
class _Picker:
    weights: Weights
    at: str
    shape: ExpertShape
    hidden: int

    def shared(self) -> MlpWeights | None:
        path, inner = f"{self.at}shared_expert.", self.shape.shared_inner
        if inner is None:
            if f"{path}gate_proj.weight" in self.weights:
                raise LoadError(
                    f"the checkpoint has {path}gate_proj.weight and config.json no "
                    "shared_expert_intermediate_size; complete config.json and import it again"
                )
            return None
        pick, hidden = self.weights.pick, self.hidden
        return MlpWeights(
            self.shape.activation,
            gate_up=pick(hidden, (f"{path}gate_proj", inner), (f"{path}up_proj", inner)),
            down=pick(inner, (f"{path}down_proj", hidden)),
        )

    def stack(
        self, parts: tuple[str, ...], rows: int, columns: int, *, joined: str | None = None
    ) -> LinearWeights:
        """[experts * parts * rows, columns]: all parts of an expert before the next one.

        joined  the name of a stack that has the parts together already
        """
        weights, count = self.weights, self.shape.count
        together = None if joined is None else self._stored(joined)
        if together is not None:
            found = weights.stack(together, count, len(parts) * rows, columns)
            return LinearWeights(found, None)
        container = next((at for at in map(self._container, parts) if at is not None), None)
        if container is None:
            return self._expert_by_expert(parts, rows, columns)
        names = [f"{container[0]}{part}{container[1]}" for part in parts]
        if len(names) == 1:
            return LinearWeights(weights.stack(names[0], count, rows, columns), None)
        if not any(name + SCALE in weights for name in names):
            return LinearWeights(weights.joined_stacks(names, count, rows, columns), None)
        stacks = [
            stack_parts(LinearWeights(weights.stack(name, count, rows, columns), None), count)
            for name in names
        ]
        return self._fused([part.weight for expert in zip(*stacks, strict=True) for part in expert])

    def _expert_by_expert(self, parts: tuple[str, ...], rows: int, columns: int) -> LinearWeights:
        each = [
            (f"{self.at}experts.{expert}.{part}", rows)
            for expert in range(self.shape.count)
            for part in parts
        ]
        return self._fused([part.weight for part in self.weights.pick(columns, *each)])

    def _container(self, part: str) -> tuple[str, str] | None:
        """What stands around the part's name in that of its stack."""
        for container in STACKS:
            for suffix in (".weight", ""):
                if f"{self.at}{container}{part}{suffix}" in self.weights:
                    return f"{self.at}{container}", suffix
        return None

    def _stored(self, part: str) -> str | None:
        around = self._container(part)
        return None if around is None else f"{around[0]}{part}{around[1]}"

    def _fused(self, weights: list[Weight]) -> LinearWeights:
        """One stack; of parts in several formats their values (LIN-6)."""
        if len(fusable_runs(weights)) > 1:
            log.warning("experts under %s are stored in several formats: dequantised", self.at)
            dtype = self.weights.placement.dtype
            weights = [
                part.dequantise(dtype) if isinstance(part, PackedWeight) else part
                for part in weights
            ]
        return LinearWeights(fuse_rows(weights) if len(weights) > 1 else weights[0], None)
