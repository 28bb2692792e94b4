"""Qwen3-Next and its successors: gated-delta and full-attention layers, dense and with experts."""
