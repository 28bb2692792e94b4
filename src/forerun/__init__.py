"""forerun: a local LLM runtime. `forerun.load(name)` gives a model to generate and chat with."""

import importlib
from typing import TYPE_CHECKING

from forerun import errors

if TYPE_CHECKING:
    from forerun.library import Answer, Chunk, Done, Model, ModelInfo, load

__version__ = "0.1.0"
__all__ = ["Answer", "Chunk", "Done", "Model", "ModelInfo", "errors", "load"]


def __getattr__(name: str) -> object:
    """The Python API, imported when it is first asked for: the command line starts without it."""
    if name not in __all__:
        raise AttributeError(f"module 'forerun' has no attribute {name!r}")
    value: object = getattr(importlib.import_module("forerun.library"), name)
    return value
