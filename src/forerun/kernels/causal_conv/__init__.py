"""Depthwise causal convolution over a sequence that arrives in pieces."""
