"""What a notebook in the chart's JupyterLab does: engines on the workers, each says where it is."""

import socket

from workbench import cluster

engines = cluster.up()
print(*engines.view.apply_sync(socket.gethostname))
engines.down()
