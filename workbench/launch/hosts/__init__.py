"""Ranks on several hosts: one agent on each, and a rehearsal before anything starts."""
