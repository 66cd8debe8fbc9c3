"""What the ranks have: whether their states are the same bits, and what each has under a name."""
