"""``RayExecutor`` on two nodes with two ranks each: what the ranks compute, know and keep, and how they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray_nodes import Nodes

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (Path(__file__).parent / "scripts" / "fixed.py").read_text()
STEPS, ROWS, LR = 20, 32, 0.1


@pytest.fixture(scope="module")
def found(nodes: Nodes) -> dict[str, Any]:
    """What the driver has found; it runs once for all tests here."""
    done = nodes.driver(SCRIPT, timeout_s=240.0)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"early"')]
    assert lines, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def serial(seed: int) -> np.ndarray[Any, Any]:
    """The same training with one rank."""
    rng = np.random.default_rng(seed)
    x, y, weights = rng.normal(size=(ROWS, 5)), rng.normal(size=ROWS), np.zeros(5)
    for _ in range(STEPS):
        weights -= LR * 2 * x.T @ (x @ weights - y) / ROWS
    return weights


@pytest.mark.parametrize(("name", "seed"), [("trained", 1), ("again", 2), ("after it", 1), ("anew", 1)])
def test_ranks_on_two_nodes_train_as_one(found: dict[str, Any], name: str, seed: int) -> None:
    """Each call trains as the serial run does: the first, the next, one after a failure, one after a new start."""
    weights = [each["weights"] for each in found[name]]
    np.testing.assert_allclose(weights, [serial(seed)] * 4, rtol=0, atol=1e-12)


def test_each_rank_knows_its_place(found: dict[str, Any]) -> None:
    """Results come by rank; ranks of a node are neighbours; Horovod's variables say what the functions say."""
    numbers = [each["numbers"] for each in found["who"]]
    assert [(each["RANK"], each["LOCAL_RANK"], each["CROSS_RANK"]) for each in numbers] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]
    assert {(each["SIZE"], each["LOCAL_SIZE"], each["CROSS_SIZE"]) for each in numbers} == {(4, 2, 2)}
    assert [each["said"] for each in found["who"]] == numbers
    hosts = [each["host"] for each in found["who"]]
    assert sorted(hosts) == ["wb1", "wb1", "wb2", "wb2"]
    assert hosts[0] == hosts[1]
    assert [each["mark"] for each in found["who"]] == ["7"] * 4


def test_the_job_listens_at_the_nodes_address_alone(found: dict[str, Any]) -> None:
    """Rank 0's board is at the address of its node; no rank listens at all addresses, but for what Ray opens there."""
    boards = [address for address, port in found["who"][0]["listens"] if port == found["who"][0]["board"]]
    assert boards == [found["who"][0]["address"]]
    assert boards[0].startswith("10.77.0.")
    for each in found["who"]:
        wide = [address for address, _ in each["listens"] if address in ("0.0.0.0", "::")]
        assert len(wide) <= 1, each["listens"]  # an actor's own server, which is Ray's


def test_an_executable_keeps_its_state(found: dict[str, Any]) -> None:
    """``execute`` calls functions of the object that ``start`` has made on each rank; ``execute_single`` on rank 0."""
    assert found["counted"] == [[12] * 4, [14] * 4]
    assert found["single"] == 16


def test_references_and_callbacks(found: dict[str, Any]) -> None:
    """``run_remote`` gives what ``ray.get`` takes, by rank; callbacks hear what each rank logs."""
    assert found["references"] == [42] * 4
    assert found["heard"] == [0, 1, 2, 3]


def test_a_rank_that_raises_is_named(found: dict[str, Any]) -> None:
    """The error says which rank raised what, and where; the exception is its cause; no other rank waits for long."""
    raised = found["raised"]
    assert raised["kind"] == "RankFailedError"
    assert raised["cause"] == "ValueError"
    assert raised["text"].startswith("Rank 1 on wb")
    assert "ValueError: there is no data on 1" in raised["text"]
    assert "in raise_on" in raised["text"]
    assert "still run" not in raised["text"]


def test_a_rank_that_is_killed_is_named(found: dict[str, Any]) -> None:
    """Amid an allreduce: the error says who was lost, the ranks do not hang, and the next call says what to do."""
    killed, lost = found["killed"], found["lost"]
    assert killed["kind"] == "RankGoneError"
    assert killed["text"].startswith("Rank 2 on wb")
    assert "still run" not in killed["text"]
    assert lost["kind"] == "LaunchError"
    assert lost["text"].startswith("Rank 2 on wb")
    assert lost["text"].endswith("Call shutdown(), then start().")


def test_nothing_is_left_after_shutdown(found: dict[str, Any]) -> None:
    """The ranks' processes have ended, and Ray has all CPUs to give."""
    assert found["free"] == 4.0
    assert [pid for pid in found["pids"] if psutil.pid_exists(pid)] == []


def test_what_cannot_be_done_is_said(found: dict[str, Any]) -> None:
    """A call before ``start``, a ``start`` before ``ray.init()``, and a function that holds a lock."""
    assert found["early"]["text"] == "There are no ranks: call start() first."
    assert "Call ray.init() first" in found["no ray"]["text"]
    assert found["unpicklable"]["kind"] == "TypeError"
    assert "cannot be pickled" in found["unpicklable"]["text"]


def test_report_figures(found: dict[str, Any], record_property: Callable[[str, object], None]) -> None:
    """How long start, the first step and the end after a kill took goes to the test's report."""
    figures = {
        "start_s": found["start_s"],
        "first_step_s": max(each["first_s"] for each in found["trained"]),
        "raised_s": found["raised"]["seconds"],
        "killed_s": found["killed"]["seconds"],
        "shutdown_s": found["shutdown_s"],
    }
    for name, value in figures.items():
        record_property(name, round(value, 2))
    print({name: round(value, 2) for name, value in figures.items()})
    assert all(value > 0 for value in figures.values())
