"""The loss against torch's own, value and gradient."""

import torch
from torch.nn import functional

from forerun.training.loss import soft_cross_entropy


def test_value_and_gradient_are_those_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(7, 11, generator=generator)).requires_grad_()
    goal = torch.randn(7, 11, generator=generator).softmax(-1)
    soft_cross_entropy(logits, goal).mul(3).backward()
    found, logits.grad = logits.grad, None
    expected = functional.cross_entropy(logits, goal)
    torch.testing.assert_close(soft_cross_entropy(logits, goal), expected)
    expected.mul(3).backward()
    torch.testing.assert_close(found, logits.grad)


def test_gradients_come_in_the_dtype_of_the_logits() -> None:
    logits = torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True)
    soft_cross_entropy(logits, torch.full((3, 4), 0.25)).backward()
    assert logits.grad is not None
    assert logits.grad.dtype == torch.bfloat16
