"""``workbench doctor`` and ``workbench check-build``: is everything here that a job needs, and does it work?"""
