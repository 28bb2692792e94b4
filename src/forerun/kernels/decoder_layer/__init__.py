"""Whole decoder layers, all of a step in one call."""
