"""``workbench run --watch``: torch's groups over Gloo give what they give without it; and faults, by rank and line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from workbench import config
from workbench.observe.watched import main, page

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(180)]

BEGIN = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
one, other = dist.new_group(range(n)), dist.new_group(range(n))
"""
# Every method of a group, in an order that is legal; each rank prints what it has got.
ALL = """
from torch.distributed.fsdp import fully_shard
import torch.distributed._functional_collectives as functional

assert dist.get_backend() == "gloo"
mine, got = torch.arange(6.0).view(2, 3) + 10 * rank, {}
for name, op in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX), ("bits", dist.ReduceOp.BOR)):
    dist.all_reduce(found := mine.int() if name == "bits" else mine.clone(), op)
    got[name] = found
dist.group.WORLD.allreduce(called := mine.clone(), dist.ReduceOp.MAX).wait()
dist.group.WORLD.broadcast(called, root=1).wait()
got["called"] = called
dist.reduce(reduced := mine.clone(), 1)
dist.broadcast(sent := mine.clone(), 1)
dist.all_gather(rows := [torch.zeros(2, 3) for _ in range(n)], mine)
dist.gather(mine, places := [torch.zeros(2, 3) for _ in range(n)] if rank == 1 else None, dst=1)
dist.scatter(part := torch.zeros(3), list(mine) if rank == 0 else None, src=0)
dist.reduce_scatter(piece := torch.zeros(3), list(mine.clone()))
dist.all_to_all_single(exchanged := torch.zeros(2, 3), mine)
dist.all_gather_object(objects := [None] * n, {"rank": rank})
if rank:
    dist.send(mine, 0)
    dist.recv(message := torch.zeros(6), 0, tag=3)
else:
    sender = dist.recv(message := torch.zeros(2, 3))
    assert sender == 1, sender
    dist.isend(mine, 1, tag=3).wait()
dist.barrier()
dist.monitored_barrier()
order = (other, one) if rank else (one, other)
works = [dist.all_reduce(mine.clone(), group=group, async_op=True) for group in order]
got |= {i: work.get_future().wait()[0] for i, work in enumerate(works)}
got |= {"functional": functional.all_gather_tensor(mine, 0, one) + 0}
got |= {"reduced": reduced if rank == 1 else 0, "sent": sent, "rows": rows, "places": places, "part": part}
got |= {"piece": piece, "exchanged": exchanged, "objects": objects, "message": message}
for kind in (DistributedDataParallel, fully_shard):
    model = kind(torch.nn.Linear(3, 3))
    for step in range(100):
        model(mine).square().mean().backward()
    grads = [each.grad for each in model.parameters()]
    got[kind.__name__] = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in grads]
torch.save(got, f"got{rank}")
dist.destroy_process_group()
"""
STEPS = """
model = DistributedDataParallel(torch.nn.Linear(3, 1))
for step in range(100):
    model(torch.ones(2, 3)).sum().backward()
"""
LINE = r"in train.py, line \d+: "
FAULTS = {
    "a batch less": (
        STEPS + "for step in range(1 - rank):\n    model(torch.ones(2, 3)).sum().backward()",
        rf"Rank 1 has left the job .*'allreduce[^']*', submitted by rank 0, can never complete.*"
        rf"Rank 0: {LINE}model",
    ),
    "another order of groups": (
        "for group in (other, one) if rank else (one, other):\n    dist.all_reduce(torch.ones(3), group=group)",
        rf"The ranks wait for each other.*rank 0: waiting {LINE}.*rank 1: waiting for 'allreduce\.2\.0' {LINE}",
    ),
    "another shape": (
        "dist.all_reduce(torch.ones(300_000 + rank))",
        r"MismatchError: Mismatched allreduce tensor shapes.*rank 0: \[300000\].*rank 1: \[300001\]",
    ),
    "a message that nobody takes": (
        "rank or dist.send(torch.ones(3), 1)",
        rf"Rank 1 has left the job .*'send\.0\.0to1.*Rank 0: {LINE}rank or dist.send",
    ),
    "other splits": (
        "dist.all_to_all_single(torch.empty(4), torch.ones((2 + rank) * 2))",
        r"Ranks send other sizes than are expected.*rank 0: sends \[2, 2\].*rank 1: sends \[3, 3\], and",
    ),
    "a message from nobody": (
        "rank and dist.recv(torch.ones(3))",
        rf"Rank 0 has left the job .*'source\.0\.anyto1.*Rank 1: {LINE}rank and dist.recv",
    ),
    "a longer message": (
        "dist.recv(torch.ones(3), 1) if rank == 0 else dist.send(torch.ones(4), 0)",
        r"MismatchError: Mismatched send tensor shapes.*rank 0: \[3\].*rank 1: \[4\]",
    ),
    "a group that one rank makes": (
        "rank or dist.new_group([0])\ndist.new_group([0, 1])",
        rf"The ranks wait for each other, so 'barrier\.new_group.*rank [01]: waiting for '.* {LINE}dist.new",
    ),
    "a rank that is killed": (
        STEPS + "rank and os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()",
        rf"PeerLostError: Rank 1 was lost.*killed.*Rank 0: {LINE}dist.barrier",
    ),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page comes into the current folder."""
    monkeypatch.chdir(tmp_path)


def run(jobs: Runner, text: str, *options: str) -> Job:
    """A script on two ranks of ``workbench run``."""
    Path("train.py").write_text(BEGIN + text)
    words = ("-m", "workbench.cli.main", "run", "-np", "2", *options, sys.executable, "train.py")
    return jobs.python(*words, deadline_s=150)


def test_nothing_else_changes(jobs: Runner) -> None:
    """Each method gives what Gloo alone gives, also in trainings and in another order of groups; there is no page."""
    import torch

    found = []
    for words in ([], ["--watch"]):
        job = run(jobs, ALL, *words)
        assert job.code == 0, job.report()
        found.append([torch.load(f"got{rank}") for rank in (0, 1)])
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert not list(Path().glob("workbench-watch*"))


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(jobs: Runner, fault: str) -> None:
    """The sentence of our own groups, with the line; the job ends; and a page has the calls of each rank that lives."""
    text, wanted = FAULTS[fault]
    job = run(jobs, text, "--watch")
    assert job.code, job.report()
    said = job.out(0) + job.err(0)
    assert re.search(wanted, said, re.DOTALL), said
    (written,) = Path().glob("workbench-watch-*.html")
    assert f"are in {written.absolute()}" in said
    shown = written.read_text()
    assert "train.py, line" in shown
    assert ("Rank 1 has written nothing" in shown) == (fault == "a rank that is killed")


PART = {
    "rank": 0, "size": 2, "epoch": 0, "host": "a<b", "error": "x < y", "versions": {"torch": "2"}, "stack": "f<g>()",
    "environment": {"MASTER_ADDR": "h<i"},
    "calls": [{"call": "barrier.0.1", "group": "0", "tensors": "", "line": "in <string>", "began": 5.0, "took": 0.5,
               "state": "done"}],
}  # fmt: skip


def test_the_page_shows_what_was_written_as_text() -> None:
    """Whatever a script's line, an error or a host's name contains."""
    shown = page([PART], "train.py <script>")
    for text in (
        "a&lt;b",
        "x &lt; y",
        "in &lt;string&gt;",
        "f&lt;g&gt;()",
        "h&lt;i",
        "train.py &lt;script&gt;",
        "500 ms",
    ):
        assert text in shown
    assert "Rank 1 has written nothing" in shown


def test_there_is_no_page_of_a_job_that_went_well(tmp_path: Path) -> None:
    """Its ranks have written parts as well, and none failed."""
    (tmp_path / "0.0.json").write_text(json.dumps(PART | {"error": ""}))
    assert main(["make", str(tmp_path), str(tmp_path / "page.html"), "", "train.py"]) == 0
    assert not (tmp_path / "page.html").exists()


def test_no_variable_that_may_be_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is made to be shown to others."""
    for name in ("NCCL_DEBUG", "WORKBENCH_SECRET", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "1")
    assert config.shown_variables()["NCCL_DEBUG"] == "1"
    assert not re.search("SECRET|TOKEN|KEY", " ".join(config.shown_variables()))
