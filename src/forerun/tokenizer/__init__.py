"""Text to token ids and back: never half a character, never a control token a user typed."""
