"""A head to go on from: one that was written by `export`, for the same model."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.training.export import CONFIG, WEIGHTS, config
from forerun.training.head import Head
from forerun.training.target import Target


@dataclass(frozen=True, slots=True)
class Start:
    """A head with its vocabulary, on the CPU."""

    head: Head
    ids: Tensor  # [columns] int64, ascending
    digest: str  # of its weights


def read_start(folder: Path, target: Target) -> Start:
    """The head in `folder`. LoadError where it is not one of this target's, or not all there."""
    try:
        stated = json.loads((folder / CONFIG).read_bytes())
        data = (folder / WEIGHTS).read_bytes()
    except OSError as reason:
        raise LoadError(f"no head to start from in {folder}: {reason.strerror}") from None
    except ValueError:
        raise LoadError(f"{folder / CONFIG} is not JSON; give a folder with a head") from None
    columns = stated.get("draft_vocab_size")
    if not isinstance(columns, int):
        raise LoadError(f"{folder / CONFIG} tells no draft_vocab_size; give a head's folder")
    for name, ours in config(target, columns).items():
        if stated.get(name) != ours:
            raise LoadError(
                f"the head in {folder} has {name} {stated.get(name)}, and one of this model has "
                f"{ours}; start from a head that was trained for this model"
            )
    tensors = load(data)
    ids = tensors.pop("d2t") + torch.arange(columns)
    del tensors["t2d"]
    head = Head(target.shape(columns))
    head.load_state_dict(tensors)
    return Start(head, ids, hashlib.sha256(data).hexdigest())
