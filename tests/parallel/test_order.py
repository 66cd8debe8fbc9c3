"""Ranks that submit in different orders: what plain MPI answers with a deadlock, and what the coordinator is for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import workbench.torch as hvd

TENSORS = 100


@pytest.mark.timeout(300)
@pytest.mark.ranks(2)
@pytest.mark.parametrize("rounds", [15, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_rank_in_an_order_of_its_own(rounds: int, rank: int, n: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounds of 100 named tensors, shuffled anew on every rank and in every round: all sums are right."""
    shuffle = random.Random(rank).shuffle
    base = [torch.arange(1.0 + i % 7) + i for i in range(TENSORS)]
    total = n * (n + 1) / 2
    names = list(range(TENSORS))
    started = time.monotonic()
    for step in range(rounds):
        shuffle(names)
        handles = {i: hvd.allreduce_async((rank + 1) * base[i] + step, op=hvd.Sum, name=f"t{i}") for i in names}
        wrong = [i for i, handle in handles.items() if not torch.equal(handle.wait(60), total * base[i] + n * step)]
        assert not wrong, f"round {step}"
    with capsys.disabled():
        print(f"\n{rounds} rounds of {TENSORS} tensors on {n} ranks: {time.monotonic() - started:.1f} s")


def test_all_verbs_in_any_order(rank: int, n: int) -> None:
    """Verbs, dtypes and shapes mixed, shapes changing from round to round, groups among them."""
    generator = random.Random(rank)
    for step in range(16):
        calls: dict[str, tuple[Callable[[], Any], Any]] = {}
        for i in range(6):
            rows, dtype = 1 + (step + i) % 5, [torch.float32, torch.int64, torch.bfloat16][(step // 3 + i) % 3]
            tensor = torch.full((rows, 2), rank + i, dtype=dtype)
            whole = torch.full((n, 3), rank + i, dtype=dtype)
            total = n * (n - 1) // 2 + n * i
            by_rank = (torch.arange(n) + i).to(dtype)
            calls[f"sum {i}"] = (
                lambda i=i, t=tensor: hvd.allreduce_async(t, op=hvd.Sum, name=f"sum.{i}"),
                torch.full((rows, 2), total, dtype=dtype),
            )
            calls[f"max {i}"] = (
                lambda i=i, t=tensor: hvd.allreduce_async(t, op=hvd.Max, name=f"max.{i}"),
                torch.full((rows, 2), n - 1 + i, dtype=dtype),
            )
            calls[f"gather {i}"] = (
                lambda i=i, t=tensor: hvd.allgather_async(t, name=f"gather.{i}"),
                by_rank.repeat_interleave(rows).unsqueeze(1).expand(-1, 2),
            )
            calls[f"root {i}"] = (
                lambda i=i, t=tensor, root=(step + i) % n: hvd.broadcast_async(t, root, name=f"root.{i}"),
                torch.full((rows, 2), (step + i) % n + i, dtype=dtype),
            )
            calls[f"all {i}"] = (
                lambda i=i, t=whole: hvd.alltoall_async(t, name=f"all.{i}"),
                by_rank.unsqueeze(1).expand(-1, 3),
            )
            calls[f"scatter {i}"] = (
                lambda i=i, t=whole: hvd.reducescatter_async(t, op=hvd.Sum, name=f"scatter.{i}"),
                torch.full((1, 3), total, dtype=dtype),
            )
            calls[f"group {i}"] = (
                lambda i=i, t=tensor: hvd.grouped_allreduce_async([t, t[:1]], op=hvd.Sum, name=f"group.{i}"),
                [torch.full((rows, 2), total, dtype=dtype), torch.full((1, 2), total, dtype=dtype)],
            )
        names = list(calls)
        generator.shuffle(names)
        handles = {name: calls[name][0]() for name in names}
        generator.shuffle(names)  # and they are waited for in yet another order
        for name in names:
            result, wanted = handles[name].wait(30), calls[name][1]
            pairs = zip(result, wanted, strict=True) if isinstance(wanted, list) else [(result, wanted)]
            assert all(torch.equal(got, want) for got, want in pairs), (step, name)


def test_a_late_rank_holds_only_its_own(rank: int, n: int) -> None:
    """A tensor that one rank submits late does not keep others, submitted after it, from completing."""
    slow = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="slow") if rank != n - 1 else None
    for i in range(50):
        assert slow is None or not slow.poll(), "the late rank has not submitted it: it comes after the last fast one"
        assert hvd.allreduce(torch.full((2,), float(i)), op=hvd.Sum, name=f"fast {i}").tolist() == [n * i] * 2
    if slow is None:
        slow = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="slow")
    assert slow.wait(30).tolist() == [n] * 3


def test_names_of_every_kind(rank: int, n: int) -> None:
    """A name may be long, empty or in any script; it is only a name."""
    names = ["", " ", "a" * 200, "Größe", "层.权重", 'with "quotes" and \\', "new\nline", "noname.0", "\0"]
    for name in names:
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name=name).tolist() == [n] * 2, name
    handles = [hvd.allreduce_async(torch.ones(2), op=hvd.Sum, name=name) for name in names]
    assert all(handle.wait(30).tolist() == [n] * 2 for handle in handles)
