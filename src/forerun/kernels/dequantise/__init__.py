"""Affine words to values."""
