"""``workbench convert --check``: the script on one rank against the converted one on two, for some steps."""
