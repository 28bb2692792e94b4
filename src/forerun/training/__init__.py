"""Draft heads for models that have none: what they are trained on, how, and how well they do."""
