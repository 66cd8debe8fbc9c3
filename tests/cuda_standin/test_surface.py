"""What the stand-in has, the real cupy has: each function with these arguments, each constant with this value.

Nightly, for it fetches cupy and NCCL, 400 MB. They need no GPU to be asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .surface import surface

OWN = ("world", "queue", "delay")
"""What only the stand-in has, to be asked by tests."""

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="cupy has no wheel for it"),
]


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cupy and NCCL."""
    folder = tmp_path_factory.mktemp("cupy")
    words = ["--quiet", "--no-deps", "--target", str(folder), "cupy-cuda13x>=14,<15", "nvidia-nccl-cu13"]
    words += ["cuda-pathfinder"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *words], capture_output=True, text=True, timeout=500, check=False
    )
    if done.returncode:
        pytest.skip(f"cupy cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder


def differences(modules: Path, asked: dict[str, Any]) -> list[str]:
    """Between what is asked for and the real cupy."""
    (nccl,) = modules.glob("nvidia/*/lib/libnccl.so.2")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("real.py"), nccl],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONPATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_cupy_and_nccl_have_all_that_the_stand_in_has(modules: Path) -> None:
    """So what runs on the stand-in finds its functions on a GPU; and NCCL has the functions that cupy calls."""
    mine = {path: about for path, about in surface().items() if path.rpartition(".")[2] not in OWN}
    assert len(mine) > 150
    mine["cupy.cuda.nccl.NcclError"] = [["status", False, ""]]  # the stand-in's has a text as well
    assert differences(modules, mine) == []


def test_a_difference_is_noticed(modules: Path) -> None:
    """A missing name, another order or name of arguments, one that cupy needs, a constant of another value."""
    send, places = "cupy.cuda.nccl.NcclCommunicator.send", ["sendbuf", "count", "datatype", "peer", "stream"]
    asked = {
        "cupy.cuda.Stream.sleep": [],
        "cupy.cuda.Event": [["disable_timing", True, ""]],
        send: [["sendbuf", False, ""], ["number", False, ""]],
        "cupy.cuda.nccl.NCCL_MAX": {"value": 3},
        "cupy.cuda.nccl.NCCL_MIN": {"value": 3},
    }
    place = "argument 'disable_timing' has place 1 here, and 2 in ['block', 'disable_timing', 'interprocess']"
    assert differences(modules, asked) == [
        "cupy.cuda.Stream.sleep: cupy has none",
        f"cupy.cuda.Event: {place}",
        f"{send}: argument 'number' is none of {places}",
        *[f"{send}: cupy needs {name!r}" for name in places[1:]],
        "cupy.cuda.nccl.NCCL_MAX: 3 here, 2 in cupy",
    ]
