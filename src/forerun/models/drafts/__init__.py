"""Draft heads, one file or folder a published family."""
