"""What the core asks of memory and network; `transport/` implements it."""
