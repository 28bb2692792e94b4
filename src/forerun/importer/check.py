"""Whether a model can be loaded, found out before anything of it is written (F13)."""

from forerun.importer.plan import tensors_of
from forerun.importer.sources import Checkpoint
from forerun.models.paper import check_shapes
from forerun.tokenizer.tokenizer import Tokenizer


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tensor, config field or tokenizer file at fault."""
    shapes = {plan.name: plan.shape for plan in tensors_of(checkpoint.blobs)}
    check_shapes(checkpoint.config, shapes)
    Tokenizer.load(checkpoint.files)
