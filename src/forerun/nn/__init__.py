"""Layers: tensors in, tensors out. They are given their weights and load nothing."""
