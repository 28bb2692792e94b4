"""One folder an operation, its meaning in `reference.py`; `select` alone chooses (KER-1)."""
