"""The process that brings a model into the store: from a wheel, a GGUF file, a folder or a hub."""
