"""Cross entropy against whole distributions, over a vocabulary that fits in memory twice."""

from typing import Any

import torch
from torch import Tensor


class _SoftCrossEntropy(torch.autograd.Function):
    """Keeps the logits as they came and makes the gradient at once, in place of float32 tables."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, goal: Tensor) -> Tensor:
        wide = logits.float()
        normal = wide.logsumexp(-1, keepdim=True)
        lost: Tensor = (normal[:, 0] - (wide * goal).sum(-1)).mean()
        ctx.save_for_backward(logits, goal, normal)
        return lost

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, goal, normal = ctx.saved_tensors
        share = torch.sub(logits.float(), normal).exp_().sub_(goal)
        return share.mul_(gradients[0] / len(logits)).to(logits.dtype), None


def soft_cross_entropy(logits: Tensor, goal: Tensor) -> Tensor:
    """The mean over rows of -sum(goal * log softmax(logits)).

    logits  [rows, columns], any float dtype; computed in float32
    goal    [rows, columns] float32 distributions, without gradient
    """
    lost: Tensor = _SoftCrossEntropy.apply(logits, goal)  # type: ignore[no-untyped-call]
    return lost
