"""Which tensors of a model are quantised, and to what (spec 07 POL, POA). Names and shapes only."""
