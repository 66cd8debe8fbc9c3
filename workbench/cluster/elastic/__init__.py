"""Engines that may die while a cell runs, and others that come: see :mod:`workbench.cluster.elastic_cluster`."""
