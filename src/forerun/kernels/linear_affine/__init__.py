"""Matrix product with an affine int4 or int8 weight."""
