"""Gated delta rule: linear attention whose state forgets, and corrects what it holds."""
