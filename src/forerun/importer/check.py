"""Whether a model can be loaded, found out before its weights are written (F13)."""

from forerun.importer.sources import Checkpoint
from forerun.tokenizer.tokenizer import Tokenizer


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tokenizer's file and value (TOK-1)."""
    Tokenizer.load(checkpoint.files)
