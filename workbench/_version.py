"""The package's version: a module of its own, for parts below the package's face."""

__version__ = "0.1.0"
