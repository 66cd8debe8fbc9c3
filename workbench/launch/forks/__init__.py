"""A fork server: one process of this user on this host has imported what engines need, and forks them at once."""
