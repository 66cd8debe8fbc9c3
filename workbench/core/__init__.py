"""The path of a tensor: from a submitted request to a finished handle."""
