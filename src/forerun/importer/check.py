"""Whether a model can be loaded and talked to, found out before anything of it is written (F13)."""

from collections.abc import Mapping

from forerun.chat.sources import ChatTemplates
from forerun.importer.sources import Checkpoint
from forerun.models.paper import check_shapes
from forerun.store.fields import parse_json
from forerun.tokenizer.tokenizer import Tokenizer


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tensor, config field or tokenizer file at fault."""
    check_shapes(checkpoint.config, {plan.name: plan.shape for plan in checkpoint.plans})
    Tokenizer.load(checkpoint.files)


def check_templates(template: str | None, files: Mapping[str, bytes]) -> None:
    """Compile the chat templates. Raises LoadError for bad Jinja, RequestError for a Go template.

    template  of the Modelfile or of the source's own file
    files     of the checkpoint; tokenizer_config.json's templates serve where there is no other
    """
    config = parse_json(files.get("tokenizer_config.json", b"{}"), "tokenizer_config.json")
    ChatTemplates.load(template, config.get("chat_template") if isinstance(config, dict) else None)
