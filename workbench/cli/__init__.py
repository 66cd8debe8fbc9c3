"""The command line, ``workbench``."""
