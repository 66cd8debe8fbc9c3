"""How a tensor travels: from a submitted request to a finished handle."""
