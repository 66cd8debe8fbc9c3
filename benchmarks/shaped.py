"""Ranks on two hosts that the test bed makes, over a link of any rate, and what their trainings share. As root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import workbench as wb

_TESTBED = Path(__file__).resolve().parent.parent / "tests" / "testbed"
_ROW = "ROW "


def tell(row: dict[str, Any]) -> None:
    """On a rank: a result for :meth:`Hosts.run`."""
    print(_ROW + json.dumps(row), flush=True)


def sgd(params: Any) -> torch.optim.Optimizer:
    """On a rank: the optimizer of all trainings."""
    return torch.optim.SGD(params, lr=0.001, momentum=0.9)


def in_turns(ways: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """On a rank: the slowest rank's seconds of each way, turn by turn, after a turn that does not count."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(-1, turns):
        for way, run in ways.items():
            slowest = float(wb.allreduce(np.array([run()]), op=wb.Max)[0])
            if turn >= 0:
                seconds[way].append(slowest)
    return seconds


class Hosts:
    """Two hosts, ``wb1`` and ``wb2``.

    Args:
        words: of the test bed's command.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def set_rate(self, rate: str) -> None:
        """From now on the link has this rate, ``"1gbit"``."""
        subprocess.run([*self._words, "rate", rate], check=True, timeout=30)

    def run(self, layout: str, script: str, *words: str, timeout_s: float = 900) -> list[dict[str, Any]]:
        """Start a script on ranks, and wait.

        Args:
            layout: ranks by host, ``"wb1:1,wb2:1"``.
            script, words: what each rank runs.
            timeout_s: deadline.

        Returns:
            What the ranks told.
        """
        run = [*self._words, "run", "wb1", "workbench", "run", "-H", layout, sys.executable, script, *words]
        done = subprocess.run(run, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return [json.loads(line.split(_ROW, 1)[1]) for line in done.stdout.splitlines() if _ROW in line]


@contextmanager
def hosts(mark: str, rate: str) -> Iterator[Hosts]:
    """Two hosts, as long as the block runs.

    Args:
        mark: tells these from others on this machine.
        rate: of the link, at first.
    """
    words = [sys.executable, str(_TESTBED), "--mark", mark]
    subprocess.run([*words, "up", "2", rate], check=True, timeout=60)
    try:
        yield Hosts(words)
    finally:
        subprocess.run([*words, "down"], check=False, timeout=60)
