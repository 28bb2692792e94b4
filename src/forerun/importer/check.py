"""Whether a model can be loaded, found out before any of its weights are written (F13, TOK-1)."""

from forerun.importer.sources import Checkpoint
from forerun.models.paper import check_shapes
from forerun.tokenizer.tokenizer import Tokenizer


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tensor, config field or tokenizer file at fault."""
    check_shapes(checkpoint.config, {plan.name: plan.shape for plan in checkpoint.plans})
    Tokenizer.load(checkpoint.files)
