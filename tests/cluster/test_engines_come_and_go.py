"""Engines die, leave and join while cells train: no cell fails, and the weights are those of a run in peace."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from installed import needs

import workbench
from workbench import cluster
from workbench.cluster.elastic_cluster import ElasticCluster
from workbench.errors import LaunchError, PeerLostError

needs("torch")
pytestmark = [
    pytest.mark.usefixtures("forked_engines"),
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.timeout(150),
]

SETUP = """
import hashlib, os, time
import torch
import workbench.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
"""
TRAINING = """
features, wanted = torch.randn(64, 8), torch.randn(64, 4)
samples = hvd.elastic.ShardBatches(features, shards=4, batch_size=2)
state = hvd.elastic.TorchState(model, optimizer, taken=[])

@hvd.elastic.run(exact=True, shards=4)
def train(state, steps, pause_s=0.0, go=None):
    while state.exact.step < steps:
        step = state.exact.step
        for shard in state.shards():
            part = samples(step, shard)
            loss = torch.nn.functional.mse_loss(model(features[part]), wanted[part])
            (loss * samples.weight(step, shard)).backward()
        optimizer.step()
        state.taken.append(step)
        state.commit()
        time.sleep(0.2 if go and not os.path.exists(go) else pause_s)
    assert state.taken == list(range(steps))
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
"""


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ElasticCluster]]:
    """``up(n, min_np=1)``; what it prints is in ``said``."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("WORKBENCH_PEER_TIMEOUT_S", "3")

    def start(n: int, *cells: str, min_np: int = 1) -> ElasticCluster:
        running = cluster.up(n, min_np=min_np)
        assert isinstance(running, ElasticCluster)
        for cell in cells:
            running.view.execute(cell)
        return running

    yield start
    cluster.down()


def until(what: Callable[[], Any], limit_s: float = 60.0) -> None:
    """Wait for it."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def outputs(result: Any) -> list[str]:
    """What each engine printed."""
    result.wait_for_output(10)
    return [each.strip() for each in result.stdout]


def test_four_then_three_then_one(
    up: Callable[..., ElasticCluster], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """2 → 4 → 1 engines and kill -9 of two, rank 0 too, amid one cell: the weights have the bits of a calm run.

    Until all that has happened the training takes its time.
    """
    calm = up(1, SETUP, TRAINING)
    (wanted,) = outputs(calm.view.execute("print(train(state, 400))", silent=False))
    cluster.down()

    engines = up(2, SETUP, TRAINING)
    go = tmp_path / "go"
    result = engines.view.execute(f"print(train(state, 400, go={str(go)!r}))", silent=False, block=False)
    engines.resize(4)
    until(lambda: len(engines._engines.watch.ranks()) == 4)
    os.kill(engines.pids()[0], signal.SIGKILL)
    until(lambda: engines._engines.watch.ranks()[:1] == [1])
    engines.rescue()
    until(lambda: len(engines._engines.watch.ranks()) == 4)
    os.kill(engines.pids()[2], signal.SIGKILL)
    time.sleep(0.3)
    engines.resize(1)
    go.touch()
    result.get(60)
    assert set(outputs(result)) == {"", wanted}
    until(lambda: engines.ready() == [1])
    assert outputs(engines.view.execute("print(state.exact.step, hvd.size())", silent=False)) == ["400 1"]

    said = capfd.readouterr().out
    assert "engine 0 is gone: it was killed by SIGKILL" in said, said
    assert "engine 4 is new" in said, said
    assert re.search(r"engine 2: hvd.broadcast_parameters.*# left out", said), said
    assert "engine 2 has left" in said, said
    picture = workbench.timeline(last=5000)
    assert [mark.rank for mark in picture.marks if "is gone" in mark.text][:1] == [0]
    assert any(re.fullmatch(r"epoch \d+ begins with 4", mark.text) for mark in picture.marks)
    assert "engine 1" in picture.svg


@pytest.mark.thorough
def test_a_death_between_cells(up: Callable[..., ElasticCluster], capfd: pytest.CaptureFixture[str]) -> None:
    """The next cell runs on those that live; rescue() brings another, which has what the others have defined."""
    engines = up(3, SETUP, "factor = 2; here = hvd.rank() == 0")
    os.kill(engines.pids()[1], signal.SIGKILL)
    until(lambda: engines.client.ids == [0, 2])
    text = "print(hvd.rank(), hvd.size(), float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))"
    assert outputs(engines.view.execute(text, silent=False)) == ["0 2 2.0", "1 2 2.0"]
    engines.rescue()
    assert outputs(engines.view.execute(text, silent=False)) == ["0 3 3.0", "1 3 3.0", "2 3 3.0"]
    assert outputs(engines.view.execute("print(factor, here)", silent=False)) == ["2 True", "2 False", "2 False"]
    assert engines.status() == "3 engines of 3: 0 (rank 0), 2 (rank 1), 3 (rank 2)"
    assert "engine 1 is gone: it was killed by SIGKILL; 2 are left" in capfd.readouterr().out


@pytest.mark.thorough
def test_a_newcomer_leaves_out_what_needs_the_others(up: Callable[..., ElasticCluster]) -> None:
    """A loop of collectives, which is no elastic training, and shutdown(); then it computes with the others."""
    engines = up(2, SETUP, "hvd.shutdown()", "hvd.init()")
    loop = "for i in range(100):\n    hvd.allreduce(torch.ones(3)); time.sleep(0.02)\nlast = i"
    result = engines.view.execute(loop, block=False)
    engines.resize(3)
    result.get(30)
    until(lambda: engines.ready() == [0, 1, 2])
    text = "print(hvd.size(), float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)), 'last' in globals())"
    assert outputs(engines.view.execute(text, silent=False)) == ["3 3.0 True", "3 3.0 True", "3 3.0 True"]
    engines.view.execute("hvd.shutdown()")
    engines.resize(2)
    assert engines.ready() == [0, 1]
    engines.view.execute("hvd.init()")
    assert outputs(engines.view.execute(text, silent=False)) == ["2 2.0 True", "2 2.0 True"]


@pytest.mark.thorough
def test_another_number_of_engines_goes_on(up: Callable[..., ElasticCluster], tmp_path: Path) -> None:
    """After down() and up() with fewer engines a checkpoint goes on where it was, to the same bits."""
    keep = f"state.checkpoint({str(tmp_path / 'kept')!r}, every=10)"
    (wanted,) = outputs(up(1, SETUP, TRAINING).view.execute("print(train(state, 90))", silent=False))
    cluster.down()
    up(3, SETUP, TRAINING, keep, "train(state, 50)")
    cluster.down()
    engines = up(2, SETUP, TRAINING, keep)
    found = outputs(engines.view.execute("print(train(state, 90), state.taken[-1])", silent=False))
    assert found == [f"{wanted} 89"] * 2


@pytest.mark.thorough
def test_a_stopped_engine_is_killed(up: Callable[..., ElasticCluster]) -> None:
    """One that was stopped answers nobody: the others go on without it."""
    engines = up(3, SETUP, TRAINING)
    result = engines.view.execute("print(train(state, 100, 0.02))", silent=False, block=False)
    until(lambda: len(engines._engines.watch.ranks()) == 3)
    time.sleep(0.5)
    os.kill(engines.pids()[2], signal.SIGSTOP)
    result.get(60)
    assert len(set(outputs(result)) - {""}) == 1
    assert engines.ready() == [0, 1]


@pytest.mark.thorough
def test_all_die(up: Callable[..., ElasticCluster]) -> None:
    """Nobody has what was trained, but the cells can run again; a cell without engines says so."""
    engines = up(2, SETUP)
    for pid in engines.pids():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not engines.client.ids)
    engines.rescue()
    assert outputs(engines.view.execute("print(hvd.rank(), hvd.size())", silent=False)) == ["0 2", "1 2"]


@pytest.mark.thorough
def test_fewer_than_the_least_wait_and_say_why(
    up: Callable[..., ElasticCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few engines wait, say what for, and fail at the deadline; nobody hangs."""
    monkeypatch.setenv("WORKBENCH_ELASTIC_TIMEOUT_S", "8")
    engines = up(2, SETUP, TRAINING, min_np=2)
    result = engines.view.execute("train(state, 1000, 0.02)", silent=False, block=False)
    until(lambda: len(engines._engines.watch.ranks()) == 2)
    os.kill(engines.pids()[1], signal.SIGKILL)
    with pytest.raises(Exception, match=r"not complete within 8 s .*1 worker of at least 2 \(min-np\)"):
        result.get(40)
    with pytest.raises(ValueError, match=r"resize\(1\): a training needs 2 at least"):
        engines.resize(1)


@pytest.mark.thorough
def test_the_last_of_those_that_began_a_cell_dies(up: Callable[..., ElasticCluster]) -> None:
    """The cell is not over: a newcomer trains on in it, with the bits of a calm run."""
    calm = up(1, SETUP, TRAINING)
    (wanted,) = outputs(calm.view.execute("print(train(state, 150))", silent=False))
    cluster.down()
    engines = up(1, SETUP, TRAINING)
    result = engines.view.execute("w = train(state, 150, 0.03)", block=False)
    engines.resize(2)
    members = engines._engines.watch._members
    until(lambda: members.rank_of(1) == 1 and members._workers[1].trained)
    os.kill(engines.pids()[0], signal.SIGKILL)
    result.get(30)
    engines.resize(3)
    until(lambda: engines.ready() == [1, 2, 3])
    text = "print(w, hvd.size(), float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))"
    assert outputs(engines.view.execute(text, silent=False)) == [f"{wanted} 3 3.0"] * 3


@pytest.mark.thorough
def test_a_newcomer_in_a_cell_that_is_no_training(
    up: Callable[..., ElasticCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the end of a cell with init() and a loop of collectives, longer than init() would, and joins."""
    monkeypatch.setenv("WORKBENCH_INIT_TIMEOUT_S", "3")
    loop = "for i in range(60):\n    hvd.allreduce(torch.ones(3)); time.sleep(0.1)"
    engines = up(2, "import time, torch\nimport workbench.torch as hvd")
    result = engines.view.execute(f"hvd.init()\n{loop}\nlast = i", block=False)
    until(lambda: len(engines._engines.watch.ranks()) == 2)
    engines.resize(3)
    assert not result.ready()
    result.get(30)
    text = "print(hvd.size(), float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))"
    until(lambda: len(engines._engines.watch.ranks()) == 3 and engines.ready() == [0, 1, 2])
    assert outputs(engines.view.execute(text, silent=False)) == ["3 3.0"] * 3


@pytest.mark.thorough
def test_nobody_is_in_a_job(up: Callable[..., ElasticCluster]) -> None:
    """A newcomer does not wait for others that have left the job; the next init() is everybody's."""
    engines = up(1, "import torch\nimport workbench.torch as hvd\nhvd.init()", "hvd.shutdown()")
    began = time.monotonic()
    engines.resize(2)
    assert time.monotonic() - began < 30, "it waited for the deadline"
    text = "hvd.init(); print(hvd.size(), float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))"
    assert outputs(engines.view.execute(text, silent=False)) == ["2 2.0"] * 2


@pytest.mark.thorough
def test_the_hub_dies(up: Callable[..., ElasticCluster], capfd: pytest.CaptureFixture[str]) -> None:
    """What waits fails, the next cell says why, and rescue() starts all engines anew."""
    engines = up(2, "x = 1")
    waiting = engines.view.execute("import time; time.sleep(60)", block=False)
    time.sleep(0.3)
    os.kill(engines._job.pid("controller"), signal.SIGKILL)
    with pytest.raises(Exception, match="the hub is gone"):
        waiting.get(20)
    with pytest.raises(PeerLostError, match=r"the hub is gone.*call engines\.rescue"):
        engines.view.execute("x")
    engines.rescue()
    assert outputs(engines.view.execute("print('x' in globals())", silent=False)) == ["False"] * 2
    said = capfd.readouterr().out
    assert said.count("the hub is gone, through which notebook and engines talk\n") == 2
    assert "2 engines started anew" in said


@pytest.mark.thorough
def test_who_has_waited_in_vain_comes_again(up: Callable[..., ElasticCluster], monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is busy for longer than the others wait for the next epoch; rescue() brings them together."""
    monkeypatch.setenv("WORKBENCH_ELASTIC_TIMEOUT_S", "3")
    engines = up(3, SETUP)
    busy = engines.view.execute("time.sleep(8)", targets=0, block=False)
    os.kill(engines.pids()[2], signal.SIGKILL)
    until(lambda: engines.client.ids == [0, 1])
    text = "print(hvd.rank(), hvd.size(), float(hvd.allreduce(torch.tensor(1.0), op=hvd.Sum)))"
    with pytest.raises(Exception, match=r"NotInitialized"):
        engines.view.execute(text, targets=1)
    busy.get(20)
    engines.rescue()
    assert outputs(engines.view.execute(text, silent=False)) == ["0 3 3.0", "1 3 3.0", "2 3 3.0"]


@pytest.mark.parametrize("min_np", [0, 3])
def test_a_least_that_does_not_fit(min_np: int) -> None:
    """Nothing is started."""
    with pytest.raises(ValueError, match="of 2 engines at least 1 and at most 2"):
        cluster.up(2, min_np=min_np)


def test_other_hosts_and_a_stopped_cluster(up: Callable[..., ElasticCluster]) -> None:
    """Both are said."""
    with pytest.raises(ValueError, match="on this machine only"):
        cluster.up(2, hosts=["nowhere.invalid:2"], min_np=1)
    engines = up(1)
    cluster.down()
    with pytest.raises(LaunchError, match="the cluster was stopped"):
        engines.resize(2)
