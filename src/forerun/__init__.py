"""forerun: a local LLM runtime. `forerun.load(name)` gives a model to generate and chat with."""

__version__ = "0.1.0"
