"""State that a layer keeps between forwards. Knows tensor geometry, never a model."""
