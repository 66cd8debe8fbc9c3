"""A simulated step as files for other tools.

``chrome`` writes what chrome://tracing and Perfetto draw, ``chakra`` the format that ASTRA-sim reads.
"""
