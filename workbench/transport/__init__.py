"""Where bytes move. ``base`` has the protocols."""
