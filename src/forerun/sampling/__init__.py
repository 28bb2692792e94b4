"""Logits in, distributions and tokens out: options, penalties, filters, noise, logprobs."""
