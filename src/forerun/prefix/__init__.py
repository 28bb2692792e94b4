"""What the caches of a loaded model hold, and how a request starts from it."""
