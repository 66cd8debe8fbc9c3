"""How small messages go between rank 0 and the others."""
