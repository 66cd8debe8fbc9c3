#!/usr/bin/env bash
# JupyterLab on the lessons in a folder: lab.sh FOLDER JUPYTER OPTIONS...
# Only this machine can connect, and only with the token that Jupyter prints.
#
# Its kernels talk over sockets in Jupyter's runtime folder, which nobody else may enter: over TCP, as by default, every
# user of the machine could read what a notebook prints. Such a socket's path has at most 103 bytes, and Jupyter's own part
# has 49. So the folder, which may lie deep in a home, gets a short name for the time being.
#
# This shell becomes JupyterLab, so that signals and Ctrl-C reach it. Another one, at the other end of a pipe that
# JupyterLab keeps open, removes the short name as soon as JupyterLab has ended, however it has ended.
#
# Where the home cannot be written, the folder of the short name is JupyterLab's home.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
jupyter=$(cd "$(dirname "$2")" && pwd)/jupyter
cd "$1"
shift 2

short=$(mktemp -d /tmp/workbench-lab-XXXXXX)
exec 9> >(trap '' INT TERM HUP; exec >/dev/null 2>&1; cat; rm -rf "$short")
runtime=$("$jupyter" --runtime-dir)
if ! mkdir -p "$runtime" 2>/dev/null || [ ! -w "$runtime" ]; then
    echo "workbench: $runtime cannot be written. JupyterLab works, with $short as its home: its settings last until it" \
        "ends. Notebooks are saved where they are. To keep the settings, set HOME to a folder of yours." >&2
    export HOME=$short
    unset JUPYTER_RUNTIME_DIR JUPYTER_DATA_DIR JUPYTER_CONFIG_DIR IPYTHONDIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME
    runtime=$("$jupyter" --runtime-dir)
    mkdir -p "$runtime"
fi
chmod go= "$runtime"
ln -s "$runtime" "$short/r"

root=$PWD
# From elsewhere, for a folder workbench/ may lie here. Then our side bar is told where the copies are; their hidden progress
# file is allowed below. The same folder says that nobody is asked about news.
if (cd / && exec "$(dirname "$jupyter")/python" -m workbench.cli.copies "$root"); then
    export JUPYTER_CONFIG_PATH=$here/lab_config${JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}
fi
"$jupyter" trust notebooks/*.ipynb >/dev/null # else it shows no figures before the cells are run
[ "$(id -u)" != 0 ] || set -- --allow-root "$@"      # it refuses to run as root unless told
export JUPYTER_RUNTIME_DIR=$short/r
exec "$jupyter" lab --ip=127.0.0.1 --KernelManager.transport=ipc --ServerApp.root_dir="$root" \
    --Application.log_level=ERROR --ContentsManager.allow_hidden=True \
    --LabApp.extra_labextensions_path="$here/../labextensions" --LabApp.default_url=/lab "$@"
