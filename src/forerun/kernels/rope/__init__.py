"""Rotation of heads by their position."""
