"""Whether a model can be loaded and talked to, found out before anything of it is written (F13)."""

from collections.abc import Mapping

from forerun.chat.dialects.registry import capabilities
from forerun.chat.sources import ChatTemplates
from forerun.importer.plan import tensors_of
from forerun.importer.sources import Checkpoint
from forerun.models.paper import check_shapes
from forerun.store.fields import parse_json
from forerun.tokenizer.tokenizer import Tokenizer


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tensor, config field or tokenizer file at fault."""
    shapes = {plan.name: plan.shape for plan in tensors_of(checkpoint.blobs)}
    check_shapes(checkpoint.config, shapes)
    Tokenizer.load(checkpoint.files)


def check_templates(
    template: str | None, files: Mapping[str, bytes], *, parser: str = ""
) -> tuple[str, ...]:
    """Compile the chat templates, and say what the model can do with them.

    Raises LoadError for bad Jinja, RequestError for a Go template or an unknown parser.

    template  of the Modelfile or of the source's own file
    files     of the checkpoint; tokenizer_config.json's templates serve where there is no other
    parser    of the Modelfile; without one the templates tell what answers are read as
    """
    config = parse_json(files.get("tokenizer_config.json", b"{}"), "tokenizer_config.json")
    named = config.get("chat_template") if isinstance(config, dict) else None
    return capabilities(ChatTemplates.load(template, named), parser)
