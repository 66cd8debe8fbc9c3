"""Backends for arrays on GPUs."""
