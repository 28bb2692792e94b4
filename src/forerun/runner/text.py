"""What a served model knows of text: tokenizer, chat template, and its Modelfile's defaults."""

from dataclasses import dataclass

from forerun.base.options import OptionValue
from forerun.chat.render import ChatRenderer
from forerun.chat.sources import ChatTemplates
from forerun.store.messages import Message
from forerun.store.stored import StoredModel
from forerun.tokenizer.tokenizer import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)


@dataclass(frozen=True, slots=True)
class TextParts:
    """Torch-free, and used from several threads at once."""

    tokenizer: Tokenizer
    renderer: ChatRenderer
    parameters: dict[str, OptionValue]
    system: str | None
    messages: tuple[Message, ...]


def load_text(stored: StoredModel) -> TextParts:
    """Read the text plane of a model. Raises LoadError or StoreError naming the file."""
    layers = {path: stored.json_layer(path) for path in TOKENIZER_FILES}
    files = {path: stored.read(layer) for path, layer in layers.items() if layer is not None}
    config = stored.json("tokenizer_config.json") if "tokenizer_config.json" in files else {}
    templates = ChatTemplates.load(stored.template, config.get("chat_template"))
    tokenizer = Tokenizer.load(files, templates.literals)
    return TextParts(
        tokenizer=tokenizer,
        renderer=ChatRenderer(templates, tokenizer.special.names, tokenizer.control_tokens),
        parameters=stored.parameters,
        system=stored.system,
        messages=stored.messages,
    )
