"""Quantised weights: their formats, their codec, and the tensors that hold them."""
