"""The model that a head is trained for, with the values that serve, on the device that trains."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.base.errors import LoadError, UnsupportedError
from forerun.contract.batch import Batch
from forerun.contract.model import SharedTables, TappedModel, TargetModel
from forerun.models.load import load_model
from forerun.models.tensor_files import Stored, open_tensors
from forerun.nn.placement import Placement
from forerun.quant.resolve import resolve
from forerun.quant.stored import packed_weight
from forerun.training.head import Beginnings, HeadShape
from forerun.training.recipe import default_taps

_FAMILIES = ("llama", "qwen3")  # whose decoder layers a head's own is like
_GLOBAL_SCALES = (".global_scale", "_scale_2")  # after the name of a weight (LIN-1)
_QUANTISED = ("_scale", "_qbias", *_GLOBAL_SCALES)


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target with taps set, and what its checkpoint says of it."""

    model: TargetModel
    tables: SharedTables
    config: Mapping[str, object]
    taps: tuple[int, ...]
    last_norm: Tensor  # [hidden] float32

    @property
    def device(self) -> torch.device:
        return self.model.facts.device

    def shape(self, columns: int) -> HeadShape:
        """The sizes of its head."""
        config = self.config
        heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
        return HeadShape(
            hidden=hidden,
            intermediate=_whole(config, "intermediate_size"),
            heads=heads,
            kv_heads=_whole(config, "num_key_value_heads", heads),
            head_dim=_whole(config, "head_dim", hidden // heads),
            taps=len(self.taps),
            columns=columns,
            eps=_number(config, "rms_norm_eps", 1e-5),
            rope_theta=_rope_theta(config),
        )

    def beginnings(self, ids: Tensor, tokens: Tensor) -> Beginnings:
        """What a head over the tokens `ids` starts from; `tokens` [B, L] are ordinary text."""
        taps = self.read(tokens)[1].flatten(0, 1)
        return Beginnings(self.tables.head_rows(ids).float().cpu(), self.last_norm, taps)

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states and tapped streams of whole sequences, tokens [B, L] from position 0.

        What follows a sequence's own tokens changes nothing in front of it.
        """
        rows, width = tokens.shape
        batch = Batch(
            input_ids=tokens,
            starts=(0,) * rows,
            lengths=(width,) * rows,
            start_offsets=torch.zeros(rows, dtype=torch.int64, device=tokens.device),
            valid_lengths=torch.full((rows,), width, dtype=torch.int64, device=tokens.device),
        )
        with torch.no_grad():
            forward = self.model.forward(batch, None)
        return forward.hidden, forward.conditioning


def load_target(
    config: Mapping[str, object], files: Iterable[Path], work: Path, device: torch.device
) -> Target:
    """Load the target with dense weights: bf16 on a GPU, fp32 on a CPU, where heads are trained so.

    work  a folder for the dequantised weights, which are written once

    UnsupportedError for a family whose heads are not trained; LoadError as the loader says.
    """
    family = config.get("model_type")
    if family not in _FAMILIES:
        known = " and ".join(_FAMILIES)
        raise UnsupportedError(f"heads are trained for {known}; this model's type is {family!r}")
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, for 30 ms each
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    dense = work / f"target-{str(dtype).removeprefix('torch.')}.safetensors"
    if not dense.exists():
        _write_dense(config, files, dense, dtype)
    model = load_model(config, [dense], Placement(dtype, device))
    if not isinstance(model, TappedModel) or not isinstance(model, SharedTables):
        raise UnsupportedError(f"a {family} model of this kind shows a draft none of its streams")
    taps = default_taps(model.facts.layers)
    model.tap(taps)
    norm = open_tensors([dense])["model.norm.weight"].read().float()
    return Target(model, model, config, taps, norm)


def _write_dense(
    config: Mapping[str, object], files: Iterable[Path], path: Path, dtype: torch.dtype
) -> None:
    stored = open_tensors(files)
    weights = {}
    for name, entry in stored.items():
        if name.endswith(_QUANTISED):
            continue
        if f"{name}_scale" in stored:
            weights[name] = _dequantised(name, stored, config, dtype)
        else:
            weights[name] = entry.read().to(dtype)
    temporary = path.with_suffix(".part")
    save_file(weights, temporary)
    temporary.replace(path)


def _dequantised(
    name: str, stored: Mapping[str, Stored], config: Mapping[str, object], dtype: torch.dtype
) -> Tensor:
    words, scale = stored[name], stored[f"{name}_scale"]
    columns = (words.shape[-1], scale.shape[-1])
    form = resolve(name, columns, metadata=words.file.metadata, config=config)
    points = stored.get(f"{name}_qbias")
    factors = [
        stored[name + part].read().float() for part in _GLOBAL_SCALES if name + part in stored
    ]
    weight = packed_weight(
        words.read(),
        scale.read(),
        None if points is None else points.read(),
        form,
        global_scale=factors[0] if factors else None,
    )
    return weight.dequantise(dtype)


def _whole(config: Mapping[str, object], field: str, default: int | None = None) -> int:
    value = config.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, int):
        raise LoadError(f"config.json: {field} is {value!r}; a head's layer needs a number")
    return value


def _number(config: Mapping[str, object], field: str, default: float) -> float:
    value = config.get(field, default)
    return float(value) if isinstance(value, int | float) else default


def _rope_theta(config: Mapping[str, object]) -> float:
    parameters = config.get("rope_parameters")
    if isinstance(parameters, Mapping) and "rope_theta" in parameters:
        return _number(parameters, "rope_theta", 10000.0)
    return _number(config, "rope_theta", 10000.0)
