"""A head to go on from: one that was written by `export`, for the same model."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.training.corpus import frequent
from forerun.training.export import CONFIG, WEIGHTS, config
from forerun.training.head import Head
from forerun.training.target import Target


@dataclass(frozen=True, slots=True)
class Start:
    """A head with its vocabulary, on the CPU."""

    head: Head
    ids: Tensor  # [columns] int64, ascending
    digest: str  # of its weights

    def widened(self, counts: Tensor, columns: int, target: Target) -> "Start":
        """With those tokens besides that the target writes most often; itself if it is wide enough.

        counts   [vocabulary] how often it writes each
        columns  that there are then, if the vocabulary has so many

        A new column starts as the target's own row, moved by what training has moved the others on
        average.
        """
        columns = min(columns, len(counts))
        if columns <= len(self.ids):
            return self
        lacking = counts.index_fill(0, self.ids, -1)
        ids = torch.cat((self.ids, frequent(lacking, columns - len(self.ids)))).sort().values
        rows = target.tables.head_rows(ids.to(target.device)).float().cpu()
        trained, old = self.head.lm_head.weight.detach(), torch.isin(ids, self.ids)
        rows += (trained - rows[old]).mean(0)
        rows[old] = trained
        head = Head(target.shape(columns))
        head.load_state_dict({**self.head.state_dict(), "lm_head.weight": rows})
        return Start(head, ids, self.digest)


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
