"""What a rank says it is at: how often, for how long, and how its GPU is."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from workbench.launch.ranks import activity
from workbench.launch.ranks.activity import Activity, Published
from workbench.launch.ranks.gpu_use import GpuUse


class Clock:
    """Time that passes when the test says so, and what is due then."""

    def __init__(self) -> None:
        self.now, self.due = 0.0, list[tuple[float, Callable[[], None]]]()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, do))

    def run(self, until: float) -> None:
        while self.due and min(at for at, _ in self.due) <= until:
            at, do = min(self.due, key=lambda each: each[0])
            self.due.remove((at, do))
            self.now = at
            do()
        self.now = until


def test_it_says_so_while_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as who wants it most, with the stack once a second; ten seconds after the last question no more."""
    clock, said = Clock(), list[tuple[float, bool]]()
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: clock.now))
    published = Published(lambda stack: said.append((clock.now, stack)) or False, clock.later)
    clock.now = 10.0
    published.ask(0.6, stack=False)
    published.ask(0.3, stack=True)
    clock.run(11.85)
    assert [at for at, _ in said] == pytest.approx([10.6, 10.9, 11.2, 11.5, 11.8])
    assert [stack for _, stack in said] == [True, False, False, False, True]
    published.ask(0.3, stack=False)
    clock.run(40.0)
    assert said[-1][0] == pytest.approx(21.85, abs=0.3)
    published.ask(0.2, stack=False)  # the clock is at 40
    clock.run(40.25)
    assert said[-1] == (pytest.approx(40.2), False)


def test_a_rank_that_waits_says_so_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times a second."""
    clock, said = Clock(), list[float]()
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: clock.now))
    Published(lambda stack: said.append(clock.now) or True, clock.later).ask(0.5, stack=False)
    clock.run(1.15)
    assert said == pytest.approx([0.5, 0.7, 0.9, 1.1])


def test_memory_is_that_of_the_process() -> None:
    """As the system counts it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("there is no /proc")
    kept = bytearray(50_000_000)
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    assert Activity().now()["memory"] == pytest.approx(int(line.split()[1]) * 1024, rel=0.05)
    assert len(kept) == 50_000_000


def nvml(asked: list[object], fails: int = 0) -> SimpleNamespace:
    """NVIDIA's library, of which two GPUs are."""

    def by_number(number: int, handle: Any) -> int:
        asked.append(number)
        return 0 if number < 2 else 6

    def memory_of(handle: Any, memory: Any) -> int:
        memory._obj.used = 7_000
        return 0

    def use_of(handle: Any, use: Any) -> int:
        use._obj.gpu = 42
        return 0

    return SimpleNamespace(
        nvmlInit_v2=lambda: fails,
        nvmlDeviceGetHandleByIndex_v2=by_number,
        nvmlDeviceGetHandleByUUID=lambda name, handle: asked.append(name),
        nvmlDeviceGetMemoryInfo=memory_of,
        nvmlDeviceGetUtilizationRates=use_of,
    )


@pytest.mark.parametrize(
    ("visible", "asked", "found"),
    [
        ("1", [1], {"memory": 7_000, "percent": 42}),
        ("GPU-5a1c", [b"GPU-5a1c"], {"memory": 7_000, "percent": 42}),
        ("7", [7], None),
        ("", [], None),
        ("0,1", [], None),
    ],
)
def test_gpu(visible: str, asked: list[object], found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that the rank may use, by number or uuid; nothing where it has none, or several and uses none yet."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen = list[object]()
    use = GpuUse(lambda: nvml(seen))
    assert use.now() == found
    assert use.now() == found
    assert seen == asked


def test_torch_that_is_being_imported_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is asked for on a thread, and a cell may be in the midst of an import."""
    half = ModuleType("torch")
    half.__spec__ = ModuleSpec("torch", None)
    half.__spec__._initializing = True  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", half)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert GpuUse(lambda: nvml([])).now() is None
    assert Activity().now()["gpu"] is None
    assert activity._number(object()) is None


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for once."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    loaded = list[int]()
    use = GpuUse(lambda: loaded.append(1) or nvml([], fails=9))
    assert use.now() is None
    assert use._asked_at == math.inf
    assert use.now() is None
    assert loaded == [1]
