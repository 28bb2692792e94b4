"""Runs requests over a loaded model, on one device thread, in token ids only."""
