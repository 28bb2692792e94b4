"""Logits of hidden states by a quantised head."""
