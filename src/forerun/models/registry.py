"""Which architecture is built by which family: one explicit list (06 CON-7, CON-13)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.contract.model import TargetModel
from forerun.models import gemma3, llama, qwen3, qwen3_moe
from forerun.models.config import ConfigReader
from forerun.models.qwen3_5 import build as qwen3_5
from forerun.models.weights import Weights

Build = Callable[[ConfigReader, Weights], TargetModel]


@dataclass(frozen=True, slots=True)
class Family:
    """One family: the names its checkpoints state in `architectures`, and what builds them."""

    architectures: tuple[str, ...]
    build: Build


def by_architecture(families: Iterable[Family]) -> dict[str, Build]:
    """The lookup table; an architecture that two families claim is an error."""
    table: dict[str, Build] = {}
    for family in families:
        for architecture in family.architectures:
            if architecture in table:
                raise ValueError(f"architecture {architecture} is registered twice")
            table[architecture] = family.build
    return table


REGISTRY = by_architecture(
    [
        Family(("LlamaForCausalLM",), llama.build),
        Family(("Qwen3ForCausalLM",), qwen3.build),
        Family(("Qwen3MoeForCausalLM",), qwen3_moe.build),
        Family(qwen3_5.ARCHITECTURES, qwen3_5.build),
        Family(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), gemma3.build),
    ]
)


def find(config: ConfigReader) -> Build:
    """What builds the model that `config` describes, by the first entry of `architectures`."""
    named = config.architecture()
    if named not in REGISTRY:
        raise LoadError(
            f"architecture {named} is not supported; supported are {', '.join(REGISTRY)}"
        )
    return REGISTRY[named]
