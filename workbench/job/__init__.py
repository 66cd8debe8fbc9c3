"""The job that this process, or thread, is a rank of: start, end, and verbs on arrays."""
