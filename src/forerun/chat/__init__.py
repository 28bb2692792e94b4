"""Chat: messages to trusted and untrusted text through a model's template, and stop strings."""
