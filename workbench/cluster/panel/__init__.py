"""``cluster.watch()``: what each rank is at, while cells run: as a panel in a notebook, as a table in a terminal."""
