"""What a served model knows of text: tokenizer, chat template, and its Modelfile's defaults."""

from dataclasses import dataclass

from forerun.base.options import OptionValue
from forerun.base.spans import Span
from forerun.chat.dialects.registry import Dialect, dialect_of
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
    """Torch-free, and used from several threads at once.

    capabilities  what the manifest says the model can do; requests for more are refused
    dialect       how its answers say more than text
    tag_ids       control tokens that are the dialect's tags: in an answer they have text
    """

    name: str
    tokenizer: Tokenizer
    renderer: ChatRenderer
    parameters: dict[str, OptionValue]
    system: str | None
    messages: tuple[Message, ...]
    capabilities: tuple[str, ...]
    dialect: Dialect
    tag_ids: frozenset[int]


def load_text(stored: StoredModel) -> TextParts:
    """Read the text plane of a model. Raises LoadError or StoreError naming the file."""
    files = tokenizer_files(stored)
    config = stored.json("tokenizer_config.json") if "tokenizer_config.json" in files else {}
    templates = ChatTemplates.load(stored.template, config.get("chat_template"))
    tokenizer = Tokenizer.load(files, templates.literals)
    stated = stored.config
    dialect = dialect_of(templates, stated.parser)
    return TextParts(
        name=str(stored.name),
        tokenizer=tokenizer,
        renderer=ChatRenderer(templates, tokenizer.special.names, tokenizer.control_tokens),
        parameters=stored.parameters,
        system=stored.system,
        messages=stored.messages,
        capabilities=stated.capabilities,
        dialect=dialect,
        tag_ids=tag_ids(tokenizer, dialect),
    )


def tokenizer_files(stored: StoredModel, folder: str = "") -> dict[str, bytes]:
    """Those that a model has, by their published names. `folder`: of a draft's, ending in `/`."""
    layers = {path: stored.json_layer(folder + path) for path in TOKENIZER_FILES}
    return {path: stored.read(layer) for path, layer in layers.items() if layer is not None}


def tag_ids(tokenizer: Tokenizer, dialect: Dialect) -> frozenset[int]:
    """The control tokens that spell a tag of the dialect.

    A template that writes a tag makes a control token of it (06 TOK-2), which has no text.
    """
    encoded = [tokenizer.encode([Span(tag, trusted=True)]) for tag in dialect.tags]
    return frozenset(token for ids in encoded for token in ids) & tokenizer.control_ids
