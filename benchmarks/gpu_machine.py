"""What there is to measure on: names, sizes and versions as a line of JSON, and why nothing can be measured."""

from __future__ import annotations

import json
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the package is that of this checkout, installed or not


def machine() -> dict[str, Any]:
    """Names, sizes and versions, and the problem, "" if there is none."""
    found: dict[str, Any] = {"cpu": cpu(), "system": f"{platform.system()} {platform.release().partition('-')[0]}"}
    for name in ("numpy", "torch", "cupy"):
        if find_spec(name) is None:
            return found | {"problem": f"{name} is not installed"}
    import numpy
    import torch

    versions = {"python": platform.python_version(), "numpy": numpy.__version__, "torch": torch.__version__}
    if not torch.cuda.is_available():
        return found | {"problem": "torch sees no GPU: a build for the CPU, or CUDA_VISIBLE_DEVICES"}
    try:
        import cupy
        from cupy.cuda import nccl
    except ImportError as error:
        return found | {"problem": f"cupy cannot be imported ({error}): pip install cupy-cuda13x, or -cuda12x"}
    from workbench.transport.gpu.select import dotted  # it needs numpy

    first = torch.cuda.get_device_properties(0)
    versions |= {"cupy": cupy.__version__, "cuda": str(torch.version.cuda)}
    versions["nccl"] = dotted(nccl.get_version()) if nccl.available else "none"
    versions["torch's nccl"] = ".".join(map(str, torch.cuda.nccl.version()[:3]))
    return found | {
        "versions": versions,
        "gpu": first.name,
        "gpus": torch.cuda.device_count(),
        "memory_gib": round(first.total_memory / 2**30, 1),
        "driver": driver(),
        "nccl": nccl.get_version() if nccl.available else 0,
        "problem": "",
    }


def driver() -> str:
    """The version of NVIDIA's driver, or "?"."""
    about = Path("/proc/driver/nvidia/version")
    found = re.search(r"\d+\.\d+(\.\d+)?", about.read_text()) if about.exists() else None
    return found[0] if found else "?"


def cpu() -> str:
    """The processor's own name, or its architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    print(json.dumps(machine()), flush=True)
