"""The model that a head is trained for, with the values that serve, on the device that trains."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.base.errors import UnsupportedError
from forerun.contract.batch import Batch
from forerun.contract.model import SharedTables, TappedModel, TargetModel
from forerun.models import llama, qwen3
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderShape, read_shape, whole_head_rope
from forerun.models.load import DRAFT, load_model
from forerun.models.tensor_files import Stored, open_tensors
from forerun.nn.placement import Placement
from forerun.quant.resolve import resolve
from forerun.quant.stored import packed_weight
from forerun.training.head import Beginnings, HeadShape
from forerun.training.recipe import default_taps
from forerun.training.trainable import LLAMA, QWEN3, architecture_of

_DEFAULTS = {LLAMA: llama.DEFAULTS, QWEN3: qwen3.DEFAULTS}  # what their configs leave out
_LAST_NORMS = tuple(f"{at}norm.weight" for at in ("model.", "language_model.model.", ""))
_GLOBAL_SCALES = (".global_scale", "_scale_2")  # after the name of a weight (LIN-1)
_QUANTISED = ("_scale", "_qbias", *_GLOBAL_SCALES)


@dataclass(frozen=True, slots=True)
class Target:
    """A loaded target with taps set, and what its checkpoint says of it."""

    model: TargetModel
    tables: SharedTables
    layers: DecoderShape
    rope_theta: float
    taps: tuple[int, ...]
    last_norm: Tensor  # [hidden] float32

    @property
    def device(self) -> torch.device:
        return self.model.facts.device

    def shape(self, columns: int) -> HeadShape:
        """The sizes of its head."""
        layers = self.layers
        return HeadShape(
            hidden=layers.hidden_size,
            intermediate=layers.intermediate_size,
            heads=layers.heads.query,
            kv_heads=layers.heads.kv,
            head_dim=layers.heads.dim,
            taps=len(self.taps),
            columns=columns,
            eps=layers.eps,
            rope_theta=self.rope_theta,
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

    UnsupportedError for an architecture whose heads are not trained; LoadError as the loader says.
    """
    architecture = architecture_of(config)
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, for 30 ms each
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    dense = work / f"target-{str(dtype).removeprefix('torch.')}.safetensors"
    if not dense.exists():
        _write_dense(config, files, dense, dtype)
    model = load_model(config, [dense], Placement(dtype, device))
    if not isinstance(model, TappedModel) or not isinstance(model, SharedTables):
        raise UnsupportedError(f"a {architecture} of this kind shows a draft none of its streams")
    taps = default_taps(model.facts.layers)
    model.tap(taps)
    whole = ConfigReader(config).text().with_defaults(_DEFAULTS[architecture])
    layers = read_shape(whole)
    theta = whole_head_rope(whole, layers.heads.dim).theta
    return Target(model, model, layers, theta, taps, _last_norm(dense))


def _last_norm(dense: Path) -> Tensor:
    stored = open_tensors([dense])
    (norm,) = (stored[name] for name in _LAST_NORMS if name in stored)
    return norm.read().float()


def _write_dense(
    config: Mapping[str, object], files: Iterable[Path], path: Path, dtype: torch.dtype
) -> None:
    stored = open_tensors(files)
    weights = {}
    for name, entry in stored.items():
        if name.endswith(_QUANTISED) or name.startswith(DRAFT):
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
    form = resolve(name, columns, metadata=words.quantisation, config=config)
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
