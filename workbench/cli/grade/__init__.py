"""``workbench grade``: the notebooks that learners hand in, run and judged each in a process of its own."""
