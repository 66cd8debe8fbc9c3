"""What a job in Ray cannot be, and what is said then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes
from running import environment

fits = pytest.importorskip("workbench.ray.strategy", exc_type=ModuleNotFoundError).fits
ray_executors = pytest.importorskip("workbench.ray", reason="Ray is not installed", exc_type=ModuleNotFoundError)

SCRIPT = (Path(__file__).parent / "scripts" / "refused.py").read_text()
WITHOUT_RAY = """
import sys
sys.modules["ray"] = None  # as if it were not installed
try:
    import workbench.ray
except ModuleNotFoundError as error:
    print(error.name, error)
"""


def test_ray_is_not_installed() -> None:
    """The error says what to install, and where."""
    words = [sys.executable, "-c", WITHOUT_RAY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50, env=environment())
    assert done.stdout.startswith("ray workbench.ray needs Ray"), done.stderr
    assert "pip install 'ray[train]'" in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({}, "give one of them"),
        ({"num_workers": 2, "num_hosts": 2}, "give one of them"),
        ({"num_workers": 0}, "at least 1 rank"),
        ({"num_hosts": 1, "num_workers_per_host": 0}, "at least 1 rank"),
        ({"max_workers": 2}, "needs min_workers"),
        ({"min_workers": 2, "num_workers": 2}, "makes the job elastic"),
        ({"min_workers": 2, "max_workers": 1}, "the second not smaller"),
        ({"min_workers": 0}, "the first is 1 or more"),
        ({"min_workers": 1, "reset_limit": -1}, "not negative"),
        ({"min_workers": 1, "cooldown_range": (9, 3)}, "first the shorter time"),
        ({"min_workers": 1, "override_discovery": False}, "needs settings.discovery"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "use_gpu is False"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "more than 0"),
    ],
)
def test_arguments_that_contradict_each_other(words: dict[str, Any], text: str) -> None:
    """They are refused when the executor is made, and the text names them."""
    with pytest.raises(ValueError, match=text):
        ray_executors.RayExecutor(ray_executors.RayExecutor.create_settings(), **words)


@pytest.mark.parametrize(
    ("n", "bundle", "strategy", "nodes", "right"),
    [
        (1, {"CPU": 8}, "STRICT_SPREAD", [{"CPU": 4}, {"CPU": 4}], False),
        (2, {"CPU": 4, "GPU": 1}, "STRICT_SPREAD", [{"CPU": 8, "GPU": 2}], False),
        (2, {"CPU": 4, "GPU": 1}, "STRICT_SPREAD", [{"CPU": 8, "GPU": 2}, {"CPU": 4, "GPU": 1}], True),
        (3, {"CPU": 2}, "PACK", [{"CPU": 3}, {"CPU": 3}], False),
        (3, {"CPU": 2}, "SPREAD", [{"CPU": 4}, {"CPU": 3}], True),
        (3, {"CPU": 2}, "STRICT_PACK", [{"CPU": 4}, {"CPU": 4}], False),
        (2, {"GPU": 1}, "PACK", [{"CPU": 4}], False),
        (9, {}, "PACK", [{"CPU": 1}], True),
    ],
    ids=str,
)
def test_what_no_cluster_of_these_nodes_can_hold(
    n: int, bundle: dict[str, float], strategy: str, nodes: list[dict[str, float]], right: bool
) -> None:
    """Whatever else runs there: it is known at once, and not after the deadline."""
    assert fits([bundle] * n, strategy, nodes) is right


def test_older_names_are_taken_with_a_warning() -> None:
    """``min_np`` and ``num_slots`` are Horovod's older names."""
    with pytest.warns(DeprecationWarning, match="min_num_proc"):
        assert ray_executors.ElasticRayExecutor.create_settings(min_np=3).min_num_proc == 3
    with pytest.warns(DeprecationWarning, match="num_workers_per_host"):
        ray_executors.RayExecutor(None, num_hosts=1, num_slots=2)
    with pytest.raises(TypeError, match="no_such_word"):
        ray_executors.ElasticRayExecutor.create_settings(no_such_word=3)


def test_parts_of_an_elastic_job_are_not_those_of_a_fixed_one() -> None:
    """Its ranks are no actors, so there are no references to results, no rank 0 to ask, and no objects kept."""
    executor = ray_executors.RayExecutor(None, min_workers=1)
    for call in (executor.run_remote, executor.execute_single):
        with pytest.raises(NotImplementedError, match="may change"):
            call(int)
    with pytest.raises(ValueError, match="keep no object"):
        executor.start(executable_cls=dict)
    executor.shutdown()


def test_logging_without_callbacks_is_warned_of() -> None:
    """Nobody hears it, and it is no error."""
    from workbench.ray import ray_logger

    with pytest.warns(UserWarning, match="without callbacks"):
        ray_logger.log({"loss": 0.1})


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_a_cluster_cannot_do_is_said(nodes: Nodes) -> None:
    """Too few CPUs, a GPU that no node has, an interface that there is not, a discovery that fails, a broken class."""
    done = nodes.driver(SCRIPT, timeout_s=200.0)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    said = {name: text for line in lines for name, text in json.loads(line).items()}
    assert "9 bundles of 1 CPU each (PACK) within 2 s" in said["too many"]
    assert "10.77.0.1 has 2 CPU" in said["too many"]
    assert "TimeoutError" in said["too many"]
    assert "3 bundles of 1 CPU each (STRICT_SPREAD)" in said["too many hosts"]
    assert "1 CPU and 1 GPU each" in said["no gpu"]
    assert "has no interface eth7, but lo, eth0" in said["no interface"]
    assert "raised ValueError: broken" in said["broken class"]
    assert "the discovery of hosts failed: RuntimeError: who is there?" in said["no discovery"]
    assert "0 of 2 slots were available after 3 s" in said["no discovery"]
    assert said["callback"] == "KeyError: 'loss'"
    assert said["left"] == 4.0
