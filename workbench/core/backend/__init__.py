"""The protocols for memory and network that the core uses; `transport/` implements them."""
