"""``examples/nano.py``: right sums in any order, the serial run's losses, and who is to blame when a rank fails."""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from loading import EXAMPLES, load
from thorough import quick

nano = load("nano", EXAMPLES)
HERE = Path(__file__).parent


def in_ranks(size: int, folder: Path, function: Callable[[Any], Any], closes: bool = True) -> list[Any]:
    """Call a function with each rank's engine, on a thread each; returns what it returned, or its error."""

    def one(rank: int) -> Any:
        engine = nano.Engine(rank, size, str(folder), deadline_s=20.0)
        try:
            result = function(engine)
            if closes:
                engine.close()
        except nano.RankError as error:
            return error
        return result

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size)))


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path, as the names of sockets must be."""
    return tmp_path_factory.mktemp("n")


# --- what it is -----------------------------------------------------------------------------------------


def test_it_is_short_and_needs_little() -> None:
    """At most 400 lines, and nothing but numpy and torch beside the standard library. Its ten parts are numbered."""
    text = (EXAMPLES / "nano.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 400
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name if isinstance(node, ast.Import) else node.module for node in imports for alias in node.names}
    assert {str(name).partition(".")[0] for name in names} - sys.stdlib_module_names == {"numpy", "torch"}
    parts = [int(line.split()[2][:-1]) for line in text.splitlines() if line.startswith("# --- ")]
    assert parts == list(range(1, 11))


# --- right results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", quick([1, 2, 3, 4], 1, 3))
def test_any_order_of_submission(size: int, folder: Path) -> None:
    """Each rank submits the same tensors in an order of its own, of all shapes and several dtypes: numpy's sums."""
    shapes = [(), (1,), (0,), (3, 4), (1000,), (2, 3, 5), (70_000,)]
    names = [
        (verb, shape, dtype) for verb in ("sum", "average") for shape in shapes for dtype in ("float32", "float64")
    ]

    def values(rank: int, name: tuple[str, tuple[int, ...], str]) -> np.ndarray:
        _, shape, dtype = name
        return np.random.default_rng([rank, *shape]).integers(-9, 9, shape).astype(dtype)

    def run(engine: Any) -> dict[Any, np.ndarray]:
        mine = random.Random(engine.rank).sample(names, len(names))
        futures = {name: engine.submit(name[0], values(engine.rank, name), str(name)) for name in mine}
        return {name: future.result() for name, future in futures.items()}

    for found in in_ranks(size, folder, run):
        for name in names:
            expected = sum(values(rank, name) for rank in range(size)) / (size if name[0] == "average" else 1)
            np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_an_array_that_does_not_lie_in_one_piece(folder: Path) -> None:
    """Alone or in a batch, it is changed where it lies, and nothing beside it is."""

    def run(engine: Any) -> tuple[np.ndarray, np.ndarray]:
        arrays = np.ones((4, 6)), np.ones((4, 6))
        engine.submit("sum", arrays[0][:, ::2], "alone").result()
        futures = [engine.submit("sum", arrays[1][:, ::2], "a"), engine.submit("sum", np.ones(5), "b")]
        assert [future.result().max() for future in futures] == [2, 2]
        return arrays

    for found in in_ranks(2, folder, run):
        for array in found:
            assert array.tolist() == [[2, 1, 2, 1, 2, 1]] * 4


def test_fusion_keeps_the_order_and_the_limit() -> None:
    """Batches are the list, cut where verb or dtype change or the bytes would be too many, and nowhere else."""
    for seed in range(200):
        source = random.Random(seed)
        requests = [
            nano.Request(source.choice(["sum", "average"]), str(i), (n,), source.choice(["int8", "bool"]), n)
            for i, n in enumerate(source.choices(range(8), k=10))
        ]
        batches = nano.fuse(requests, limit_bytes=10)
        assert [one for batch in batches for one in batch] == requests
        for batch in batches:
            assert len({(one.verb, one.dtype) for one in batch}) == 1
            assert len(batch) == 1 or sum(one.nbytes for one in batch) <= 10
        for batch, following in pairwise(batches):
            first = following[0]
            alike = (first.verb, first.dtype) == (batch[0].verb, batch[0].dtype)
            assert not alike or sum(one.nbytes for one in batch) + first.nbytes > 10


def serial_losses() -> list[float]:
    """Of plain torch, on all rows."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(240, 8, generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_one_rank_and_several_train_alike(folder: Path) -> None:
    """Each step's loss of two ranks is that of plain torch on all rows."""
    drawn = Event()  # torch's generator is that of both threads: rank 1 draws when rank 0 has its weights

    def train(engine: Any) -> Any:
        if engine.rank == 0:
            submit = engine.submit
            engine.submit = lambda *words: (drawn.set(), submit(*words))[1]
        else:
            assert drawn.wait(60)
        return nano.train(engine)

    expected = serial_losses()
    for losses in in_ranks(2, folder, train):
        np.testing.assert_allclose(losses, expected, atol=2e-6)


@pytest.mark.thorough
@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_two_processes_train_alike() -> None:
    """As from the command line."""
    command = [sys.executable, str(EXAMPLES / "nano.py"), "2"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout
    found = [float(line.rpartition(" ")[2]) for line in said.splitlines()]
    np.testing.assert_allclose(found, serial_losses(), atol=2e-6)


# --- who is to blame ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank_1", "words"),
    [
        (("sum", np.ones(4), "x"), "rank 0: sum float64 (3,); rank 1: sum float64 (4,)"),
        (("sum", np.ones(3, np.float32), "x"), "rank 0: sum float64 (3,); rank 1: sum float32 (3,)"),
        (("average", np.ones(3), "x"), "rank 0: sum float64 (3,); rank 1: average float64 (3,)"),
    ],
)
def test_a_disagreement_is_told_to_all(rank_1: tuple[Any, ...], words: str, folder: Path) -> None:
    """Each rank gets the same text, with what each has said."""
    asked = [("sum", np.ones(3), "x"), rank_1]
    errors = in_ranks(2, folder, lambda engine: engine.submit(*asked[engine.rank]).result())
    assert [str(error) for error in errors] == [f"The ranks do not agree about 'x'. {words}."] * 2


def test_the_same_name_twice(folder: Path) -> None:
    """What is under way cannot be submitted again; when it is done, it can."""

    def run(engine: Any) -> None:
        if engine.rank == 1:
            engine.submit("sum", np.ones(1), "y").result()  # rank 1 submits x when rank 0 has tried to, twice
        first = engine.submit("sum", np.ones(3), "x")
        if engine.rank == 0:
            with pytest.raises(ValueError, match="'x' is under way"):
                engine.submit("sum", np.ones(3), "x")
            engine.submit("sum", np.ones(1), "y").result()
        first.result()
        engine.submit("sum", np.ones(3), "x").result()

    assert in_ranks(2, folder, run) == [None, None]


def test_who_submits_after_the_end(folder: Path) -> None:
    """Gets an error, and so does who still waits for what the others have never submitted."""

    def run(engine: Any) -> list[str]:
        waits = [engine.submit("sum", np.ones(3), "x")] if engine.rank == 0 else []
        engine.close()
        said = [str(future.exception(timeout=20)) for future in waits]
        with pytest.raises(nano.RankError) as late:  # noqa: PT012 - the engine's thread may take a moment
            for i in range(1000):
                engine.submit("sum", np.ones(3), f"y{i}")
                time.sleep(0.01)
        return [*said, str(late.value)]

    errors = [error for engine in in_ranks(2, folder, run, closes=False) for error in engine]
    assert errors == ["The job is over: all ranks have closed their engines."] * 3


@cache
def scenes() -> dict[str, dict[str, str]]:
    """How the ranks of ``nano_ranks.py`` ended: scene → rank → error."""
    command, env = [sys.executable, str(HERE / "nano_ranks.py")], {**os.environ, "OMP_NUM_THREADS": "1"}
    told: dict[str, dict[str, str]] = json.loads(
        subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=100, check=True).stdout
    )
    return told


@pytest.mark.parallel
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("scene", "survivors", "words"),
    [
        ("never_comes", "02", "rank 1 did not come"),
        ("killed", "02", "rank 1 has ended"),
        ("killed_amid_a_transfer", "02", "rank 1 has ended"),
        ("rank_0_killed", "12", "rank 0 has ended"),
        ("stopped_amid_a_transfer", "02", "for rank 1."),
        ("raises", "02", "rank 1 has ended"),
        ("withholds", "012", "rank 1 did not submit 'y' within 5 s."),
    ],
)
def test_the_culprit_is_named(scene: str, survivors: str, words: str) -> None:
    """Every rank that goes on gets an error, within the deadlines, that names the one which did not."""
    found = scenes()[scene]
    for rank in survivors:
        assert found[rank].startswith("RankError: "), found
        assert words in found[rank], found
