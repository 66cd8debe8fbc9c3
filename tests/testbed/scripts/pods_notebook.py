"""What a notebook in the chart's JupyterLab does: engines on the workers, each says where it is."""

from workbench import cluster

engines = cluster.up()
print(*engines[:].apply_sync(lambda: __import__("socket").gethostname()))
cluster.down()
