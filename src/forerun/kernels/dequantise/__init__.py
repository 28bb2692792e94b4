"""Quantised words to values."""
