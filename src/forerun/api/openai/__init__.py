"""The OpenAI-compatible dialect under /v1 (spec 08 OAI)."""
