"""The workers of an elastic job that are processes of one host."""
