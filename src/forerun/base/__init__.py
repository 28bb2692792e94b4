"""Errors, units, paths, logs and the table of options: what every layer may use."""
