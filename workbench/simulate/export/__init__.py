"""A simulated step as files for other tools.

``chrome`` writes what chrome://tracing and Perfetto draw, ``chakra`` what ASTRA-sim and others replay; ``wire`` is the
part of protobuf's format that the latter needs.
"""
