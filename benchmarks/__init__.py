"""Measurements: one question a script, all by the rules of `protocol.py`."""
