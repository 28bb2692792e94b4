"""Packing and affine quantisation, as pure functions."""
