"""A whole decoder layer as one call."""
