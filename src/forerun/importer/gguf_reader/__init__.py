"""What a GGUF file says: its tensors, and the config and tokenizer hidden in its metadata (GUF)."""
