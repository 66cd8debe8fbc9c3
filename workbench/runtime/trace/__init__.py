"""What happened to each collective: in memory, and as a file."""
