"""A checkpoint's tensors, handed to a model one by one: checked, cast, folded and counted.

Every tensor is picked once. What is missing or misshapen stops the load and is named; what nobody
picked is listed in one warning. Folds read each source straight into its place in the result, so
that memory peaks at the model plus the largest fold (05 LOD-4, LIN-12).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.logs import logger
from forerun.base.shown import listed
from forerun.models.packed_weights import PARTS, SCALE, read_packed
from forerun.models.projection import Projection, SideBySide, fusable_runs
from forerun.models.tensor_files import Stored
from forerun.nn.embedding import Embedding
from forerun.nn.linear import Linear, LinearWeights
from forerun.nn.placement import Placement
from forerun.quant.packed import Weight, fuse_rows

log = logger(__name__)

Progress = Callable[[int, int], None]  # completed and total, in bytes

LEFTOVERS = (".rotary_emb.inv_freq",)  # computed from the config; old exporters wrote them anyway


class Weights:
    """The tensors of one model."""

    def __init__(
        self,
        stored: Mapping[str, Stored],
        config: Mapping[str, object],
        placement: Placement,
        progress: Progress | None = None,
        *,
        own_draft: bool = True,
    ) -> None:
        """
        config     the checkpoint's config.json, which may state how weights are quantised
        own_draft  whether a draft head among the tensors is wanted
        """
        self._unpicked = dict(stored)
        self._config = config
        self._progress = progress
        self._read_bytes = 0
        self._total_bytes = sum(file.size for file in {entry.file for entry in stored.values()})
        self.placement, self.own_draft = placement, own_draft

    def __contains__(self, name: str) -> bool:
        """Whether a tensor of that name is there and not picked yet."""
        return name in self._unpicked

    @property
    def surplus(self) -> list[str]:
        """The tensors that nobody has picked."""
        return sorted(self._unpicked)

    def columns(self, name: str) -> int | None:
        """Numbers in a row of a dense tensor as stored; None where it is missing or packed."""
        stored = self._unpicked.get(name)
        packed = name + SCALE in self
        return None if stored is None or packed else stored.row

    def prefix(self, name: str, candidates: Sequence[str]) -> str:
        """The first of `candidates` under which tensor `name` stands."""
        for prefix in candidates:
            if prefix + name in self._unpicked:
                return prefix
        tried = ", ".join(prefix + name for prefix in candidates)
        raise LoadError(f"the checkpoint has none of the tensors {tried}; import it again")

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """One dense tensor on the device of the model, in its dtype or in another."""
        return self._read(name, shape).to(self.placement.device, dtype or self.placement.dtype)

    def values(self, path: str, rows: int, columns: int) -> Tensor:
        """The weight at `path` as float32 values, quantised or not."""
        name = f"{path}.weight"
        if name + SCALE in self:
            return read_packed(self, name, (rows, columns), self._config).dequantise(torch.float32)
        return self.take(name, (rows, columns), torch.float32)

    def part(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor as stored, on the device of the model."""
        return self._pick(name, shape).to(self.placement.device)

    def stored(self, name: str) -> Stored:
        """One tensor that nobody has picked, unread."""
        if name not in self._unpicked:
            raise LoadError(f"{_in_words(name)} is missing: the checkpoint has no tensor {name}")
        return self._unpicked[name]

    def head(self, inputs: int, path: str, rows: int, *, dtype: torch.dtype, fused: bool) -> Linear:
        """The output head at `path`. dtype: of what it is given, where it is quantised."""
        (picked,) = self.pick(inputs, (path, rows))
        kernels = self.placement.kernels
        return Linear(picked.weight, picked.bias, dtype=dtype, kernels=kernels, fused=fused)

    def pick(
        self, inputs: int, *parts: tuple[str, int], biased: bool = False
    ) -> list[LinearWeights]:
        """The weights at each path: quantised ones apart, dense ones fused as they are read.

        Biases count where their tensors exist (LIN-1); `biased` makes their absence an error.
        """
        bias = self._bias([(f"{path}.bias", rows) for path, rows in parts], biased)
        named = [(f"{path}.weight", (rows, inputs)) for path, rows in parts]
        if not any(name + SCALE in self for name, _ in named):
            return [LinearWeights(self._stacked(named), bias)]
        weights = [self._weight(name, *shape) for name, shape in named]
        if bias is None:
            return [LinearWeights(weight, None) for weight in weights]
        biases = bias.split_with_sizes([rows for _, rows in parts])
        return [LinearWeights(*pair) for pair in zip(weights, biases, strict=True)]

    def stack(self, name: str, experts: int, rows: int, columns: int) -> Weight:
        """Tensor `name`, stored [experts, rows, columns], as [experts * rows, columns]."""
        return self._weight(name, experts, rows, columns)

    def joined_stacks(self, names: Sequence[str], experts: int, rows: int, columns: int) -> Tensor:
        """Dense stacks of that shape as one, of each expert its rows of the first before others."""
        shape = (experts, rows, columns)
        for name in names:
            self._checked(name, shape)  # before memory is taken for them
        joined = torch.empty(
            (experts, len(names), rows, columns),
            dtype=self.placement.dtype,
            device=self.placement.device,
        )
        for place, name in enumerate(names):
            joined[:, place].copy_(self._read(name, shape))
        return joined.flatten(0, 2)

    def projection(self, picked: list[LinearWeights]) -> Projection:
        """What was picked as one projection; parts whose formats differ stay side by side (LIN-6).

        Empties the list, so that sources go one by one.
        """
        linears = []
        while picked:
            run, *_ = fusable_runs([part.weight for part in picked])
            joined = _joined(picked[:run])
            del picked[:run]
            linears.append(self._linear(joined.weight, joined.bias))
            del joined
        return linears[0] if len(linears) == 1 else SideBySide(linears)

    def settle(self, linears: Iterable[LinearWeights]) -> None:
        """Choose for `linears`, not fused with anything else, and for what is made after them."""
        self.placement = self.placement.settled(linears)

    def embedding(self, path: str, rows: int, width: int, dtype: torch.dtype) -> Embedding:
        """The token table. dtype: of its vectors where it is quantised."""
        weight = self._weight(f"{path}.weight", rows, width)
        return Embedding(weight, dtype=dtype, kernels=self.placement.kernels)

    def same(self, path: str, other: str) -> bool:
        """Whether two layers are stored with equal weights."""
        return all(
            _equal(
                self._unpicked.get(f"{path}.weight{part}"),
                self._unpicked.get(f"{other}.weight{part}"),
            )
            for part in PARTS
        )

    def finish(self) -> None:
        """Report the last byte, and what the model did not ask for, in one warning (CON-14)."""
        if self._progress is not None:
            self._progress(self._total_bytes, self._total_bytes)
        names = [name for name in self.surplus if not name.endswith(LEFTOVERS)]
        surplus = [name for name in names if _whole(name) not in self._unpicked]
        if surplus:
            log.warning(
                "%d tensors of the checkpoint are not used: %s", len(surplus), listed(surplus)
            )

    def skip(self, *prefixes: str) -> None:
        """Tensors of parts that are not served on purpose, such as a vision tower."""
        for name in [name for name in self._unpicked if name.startswith(prefixes)]:
            del self._unpicked[name]

    def _linear(self, weight: Weight, bias: Tensor | None) -> Linear:
        return Linear(weight, bias, dtype=self.placement.dtype, kernels=self.placement.kernels)

    def _stacked(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> Tensor:
        """Dense tensors one after the other along the first dimension."""
        if len(parts) == 1:
            return self.take(*parts[0])
        for name, shape in parts:
            self._checked(name, shape)  # before memory is taken for them
        rows = sum(shape[0] for _, shape in parts)
        stacked = torch.empty(
            (rows, *parts[0][1][1:]), dtype=self.placement.dtype, device=self.placement.device
        )
        filled = 0
        for name, shape in parts:
            stacked[filled : filled + shape[0]].copy_(self._read(name, shape))
            filled += shape[0]
        return stacked

    def _weight(self, name: str, *shape: int) -> Weight:
        if name + SCALE in self:
            return read_packed(self, name, shape, self._config)
        return self.take(name, shape).flatten(0, -2)

    def _bias(self, parts: Sequence[tuple[str, int]], biased: bool) -> Tensor | None:
        """The fused bias; a part without one gets zeros. None where no part has one (LOD-7)."""
        found = {name for name, _ in parts if biased or name in self._unpicked}
        if not found:
            return None
        for name, rows in parts:
            if name in found:
                self._checked(name, (rows,))
        bias = torch.zeros(
            sum(rows for _, rows in parts),
            dtype=self.placement.dtype,
            device=self.placement.device,
        )
        for (name, rows), part in zip(
            parts, bias.split_with_sizes([rows for _, rows in parts]), strict=True
        ):
            if name in found:
                part.copy_(self._read(name, (rows,)))
        return bias

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A dense tensor as stored."""
        tensor = self._pick(name, shape)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise LoadError(
                f"tensor {name} holds {tensor.dtype} values without a scale; import it again "
                "from a checkpoint in bf16, fp16 or fp32"
            )
        return tensor

    def _pick(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stored = self._checked(name, shape)
        del self._unpicked[name]
        tensor = stored.read()
        self._read_bytes += tensor.nbytes
        if self._progress is not None:
            self._progress(self._read_bytes, self._total_bytes)
        return tensor

    def _checked(self, name: str, shape: tuple[int, ...]) -> Stored:
        stored = self.stored(name)
        if stored.shape != shape:
            raise LoadError(
                f"tensor {name} has shape {list(stored.shape)} and the config asks for "
                f"{list(shape)}"
            )
        return stored


def _whole(name: str) -> str | None:
    """The weight of which `name` is a part beside its words; None where it is no such part."""
    ends = (part for part in PARTS if part and name.endswith(f".weight{part}"))
    return next((name.removesuffix(part) for part in ends), None)


def _in_words(name: str) -> str:
    """What a tensor is, for people: "self_attn.q_proj of layer 3"."""
    found = re.search(r"(?:^|\.)layers\.(\d+)\.(.+?)(?:\.weight)?$", name)
    if found is None:
        return name.removesuffix(".weight")
    return f"{found[2]} of layer {found[1]}"


def _joined(parts: Sequence[LinearWeights]) -> LinearWeights:
    """Parts of one format as one; a lone one stays where it is, which may be its file (LOD-6)."""
    if len(parts) == 1:
        return parts[0]
    biases = [part.bias for part in parts if part.bias is not None]
    weight = fuse_rows([part.weight for part in parts])
    return LinearWeights(weight, torch.cat(biases) if biases else None)


def _equal(one: Stored | None, other: Stored | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.shape != other.shape:
        return False
    left, right = one.read(), other.read()
    return left.dtype == right.dtype and torch.equal(left, right)
