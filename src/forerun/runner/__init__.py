"""The process that serves one model: composes its parts, prepares requests, answers in text."""
