"""What lessons import, and what builds the notebooks from them. Uses the workbench like any user."""
