"""Where bytes move. ``base`` has the protocols; each other file is one way to the other ranks."""
