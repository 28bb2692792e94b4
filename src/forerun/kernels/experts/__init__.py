"""A mixture of experts."""
