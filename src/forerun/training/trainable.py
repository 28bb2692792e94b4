"""Which models heads can be trained for, told by what is stored: without torch, before any work."""

from collections.abc import Mapping

from forerun.base.errors import UnsupportedError
from forerun.chat.sources import ChatTemplates
from forerun.models.config import ConfigReader
from forerun.store.stored import StoredModel

LLAMA, QWEN3 = "LlamaForCausalLM", "Qwen3ForCausalLM"
TRAINABLE = (LLAMA, QWEN3)  # whose decoder layers a head's own is like


def check_trainable(stored: StoredModel) -> None:
    """Raises as `architecture_of` does, and RequestError for a model that cannot chat.

    Reads a few small files.
    """
    architecture_of(stored.json("config.json"))
    layer = stored.json_layer("tokenizer_config.json")
    config = {} if layer is None else stored.json(layer.name)
    ChatTemplates.load(stored.template, config.get("chat_template")).choose(tools_given=False)


def architecture_of(config: Mapping[str, object]) -> str:
    """What a trainable model is, by its config.json.

    LoadError if that names no architecture, UnsupportedError if it names another one.
    """
    named = ConfigReader(config).architecture()
    if named not in TRAINABLE:
        raise UnsupportedError(
            f"this model is {named}; draft heads can be trained for {' and '.join(TRAINABLE)} alone"
        )
    return named
