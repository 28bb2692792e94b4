"""The architectures that can be served: one file a family, one registry line each (06 CON-13)."""
