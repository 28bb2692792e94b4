"""The native dialect: Ollama's API and our extension fields (spec 08 API)."""
