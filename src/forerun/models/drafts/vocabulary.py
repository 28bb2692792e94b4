"""Which tokens the logits of a draft with a vocabulary of its own stand for (spec 03 EGL-7)."""

import torch
from torch import Tensor

from forerun.base.errors import LoadError


def column_ids(columns: int, vocabulary: int, d2t: Tensor | None, t2d: Tensor | None) -> Tensor:
    """[columns] int64 target id of each column of the draft's logits.

    columns      of the draft's logits
    vocabulary   of the target's
    d2t          what is added to each column to make it a token id
    t2d          [vocabulary] bool, the tokens that the draft knows

    LoadError where they contradict each other.
    """
    sizes = [None if part is None else tuple(part.shape) for part in (d2t, t2d)]
    check_columns(columns, vocabulary, *sizes)
    ids = torch.arange(columns)
    if d2t is not None:
        if d2t.is_floating_point():
            raise LoadError(f"tensor d2t holds {d2t.dtype} numbers; its differences are whole")
        ids = ids + d2t.long()
        _check_ids(ids, vocabulary)
    if t2d is not None:
        _check_known(ids, t2d)
    return ids


def check_columns(
    columns: int,
    vocabulary: int,
    d2t: tuple[int, ...] | None,
    t2d: tuple[int, ...] | None,
) -> None:
    """What the shapes of the two tensors tell. LoadError as above."""
    if d2t is None and columns != vocabulary:
        raise LoadError(
            f"the draft head has {columns} logits and no tensor d2t, and the model has "
            f"{vocabulary}; without d2t both must be equal"
        )
    if d2t not in (None, (columns,)):
        raise LoadError(
            f"tensor d2t holds {list(d2t)} numbers, and the draft head has {columns} logits"
        )
    if t2d not in (None, (vocabulary,)):
        raise LoadError(
            f"tensor t2d has {list(t2d)} entries, and the model has {vocabulary} tokens"
        )


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    least, largest = int(ids.min()), int(ids.max())
    if least < 0 or largest >= vocabulary:
        raise LoadError(
            f"d2t names the tokens {least} to {largest}, and the model has {vocabulary} tokens"
        )
    found = len(set(ids.tolist()))
    if found < ids.numel():
        raise LoadError(f"d2t names {found} different tokens for {ids.numel()} logits")


def _check_known(ids: Tensor, t2d: Tensor) -> None:
    known = t2d.nonzero().squeeze(-1)
    if known.numel() != ids.numel():
        raise LoadError(f"t2d knows {known.numel()} tokens, and the head has {ids.numel()} logits")
    other = (known != ids.sort().values).nonzero()
    if other.numel():
        first = int(other[0])
        raise LoadError(
            f"t2d knows token {int(known[first])} where d2t has {int(ids.sort().values[first])}"
        )
