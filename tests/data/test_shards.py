"""Tar shards: every sample once, for any numbers of files, ranks and workers; nothing damaged is taken for less."""

from __future__ import annotations

import io
import pickle
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import once_more

import workbench
from workbench.data.shards import TarShards
from workbench.errors import DataNotFoundError

EPOCH = 3


def write(path: Path, members: Mapping[str, bytes]) -> None:
    """A tar file of these members, as ``tar`` and webdataset write it."""
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def npy(array: Any) -> bytes:
    """As a file's content."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def fill(folder: Path, lengths: list[int]) -> int:
    """Files of so many samples each; how many in all."""
    first = 0
    for number, length in enumerate(lengths):
        samples = range(first, first + length)
        write(folder / f"{number:03}.tar", {f"{i}.{what}": str(i).encode() for i in samples for what in ("cls", "txt")})
        first += length
    return first


def seen(folder: Path, size: int, workers: int, **options: Any) -> list[list[int]]:
    """What each reader reads in an epoch."""
    found = []
    for rank in range(size):
        shards = TarShards(folder, rank, size, **options)
        shards.set_epoch(EPOCH)
        found += [[sample["cls"] for sample in shards.read(worker, workers)] for worker in range(workers)]
    return found


lengths = st.lists(st.integers(0, 7), min_size=1, max_size=9)


@settings(deadline=None, max_examples=40)
@given(lengths, st.integers(1, 4), st.integers(1, 3), st.sampled_from([0, 1, 4, 1000]), st.integers(0, 2**40))
def test_no_sample_twice_and_none_lost(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], size: int, workers: int, shuffle: int, seed: int
) -> None:
    """All readers together read each sample once, and the same again if they are asked again."""
    folder = tmp_path_factory.mktemp("shards")
    n = fill(folder, lengths)
    first = seen(folder, size, workers, shuffle=shuffle, seed=seed)
    assert Counter(i for each in first for i in each) == Counter(range(n))
    assert first == seen(folder, size, workers, shuffle=shuffle, seed=seed)
    if not shuffle and size == workers == 1:
        assert first == [list(range(n))]


def test_an_epoch_has_an_order_of_its_own(tmp_path: Path) -> None:
    """Another epoch or seed gives others of 60 samples first; so does each reader."""
    fill(tmp_path, [20, 20, 20])
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        shards = TarShards(tmp_path, 0, 1, seed=seed, shuffle=30)
        shards.set_epoch(epoch)
        orders.append([sample["cls"] for sample in shards])
    assert len(set(map(tuple, orders))) == 3
    assert all(order != sorted(order) for order in orders)


def test_members_are_decoded_by_their_names(tmp_path: Path) -> None:
    """Arrays, numbers, texts, JSON and pictures; other content stays bytes, above all what could be unpickled."""
    image_module = pytest.importorskip("PIL.Image")
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    file = io.BytesIO()
    image_module.fromarray(picture).save(file, "png")
    trap = pickle.dumps(threading.main_thread)
    content = {"npy": npy(picture), "cls": b"7", "txt": "ä".encode(), "json": b'{"a": [1]}', "seg.PNG": file.getvalue()}
    content |= {"pickle": trap, "pyd": trap, "pth": trap}
    write(tmp_path / "0.tar", {f"./train/v1.0/a.{ending}": each for ending, each in content.items()})
    (sample,) = TarShards(tmp_path, 0, 1)
    assert sample.pop("__key__") == "./train/v1.0/a"
    for ending in ("npy", "seg.PNG"):
        np.testing.assert_array_equal(sample.pop(ending), picture)
    assert sample == {"cls": 7, "txt": "ä", "json": {"a": [1]}, "pickle": trap, "pyd": trap, "pth": trap}
    (own,) = TarShards(tmp_path, 0, 1, decode={"json": len}, transform=lambda sample: sample["json"])
    assert own == 10


# Of a file of three samples, and the place of the second.
BROKEN: dict[str, Callable[[bytes, int], bytes]] = {
    "empty": lambda good, second: b"",
    "no tar": lambda good, second: b"no archive" * 200,
    "cut in a member": lambda good, second: good[: second + 515],
    "cut in a header": lambda good, second: good[: second + 100],
    "cut between two members": lambda good, second: good[:second],
    "damaged header": lambda good, second: good[:second] + b"3" + good[second + 1 :],
    "another archive behind": lambda good, second: good + good,
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_damaged_file_is_an_error_with_rank_and_file(tmp_path: Path, what: str) -> None:
    """No sample of it is lost without a word."""
    fill(tmp_path, [3, 3])
    path = tmp_path / "001.tar"
    write(path, {f"{i}.cls": b"1" for i in range(1, 4)})
    good = path.read_bytes()
    path.write_bytes(BROKEN[what](good, good.index(b"2.cls" + bytes(95))))
    with pytest.raises(ValueError, match=r"rank 1 cannot read .*001\.tar"):
        [list(TarShards(tmp_path, rank, 2, shuffle=0)) for rank in range(2)]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"a.npy": pickle.dumps([1])}, r"at member a\.npy: ValueError: .*allow_pickle"),
        ({"a.npy": npy(np.array([object()]))}, r"at member a\.npy: ValueError: Object arrays"),
        ({"a.cls": b"seven"}, r"at member a\.cls: ValueError: invalid literal"),
        ({"a.json": b"[" * 100_000}, r"at member a\.json: RecursionError"),
        ({"a.txt": b"\xff"}, r"at member a\.txt: UnicodeDecodeError"),
        ({"a.jpg": b"none"}, r"at member a\.jpg: UnidentifiedImageError"),
        ({"a.cls": b"1", "b.cls": b"1", "a.txt": b""}, r"at member a\.txt: .* do not follow one another"),
    ],
)
def test_a_sample_that_cannot_be_decoded_is_named(tmp_path: Path, members: dict[str, bytes], words: str) -> None:
    """With rank, file and member; arrays of objects would have to be unpickled, and are not."""
    if "a.jpg" in members:
        pytest.importorskip("PIL")
    write(tmp_path / "x.tar", members)
    with pytest.raises(ValueError, match=rf"rank 0 cannot read .*x\.tar, {words}"):
        list(TarShards(tmp_path, 0, 1))


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    """It would make a terabyte of a few bytes."""
    member = tarfile.TarInfo("a.txt")
    member.type, member.pax_headers = tarfile.REGTYPE, {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    with pytest.raises(ValueError, match=r"x\.tar, .*not its own|x\.tar: .*not its own"):
        list(TarShards(tmp_path, 0, 1))


def test_a_folder_without_tar_files_is_an_error(tmp_path: Path) -> None:
    """And one rank too many is another one."""
    with pytest.raises(DataNotFoundError, match="has no tar file"):
        TarShards(tmp_path, 0, 1)
    with pytest.raises(ValueError, match="rank=2 does not exist"):
        TarShards(tmp_path, 2, 2)


@pytest.mark.process
@pytest.mark.parametrize("method", ["fork", once_more("spawn")])
def test_a_loader_s_workers_share_the_files(tmp_path: Path, method: str) -> None:
    """Two persistent workers of each of two ranks: each sample once, in each epoch in another order."""
    torch_data = pytest.importorskip("torch.utils.data")
    n = fill(tmp_path, [5, 0, 3, 4, 6])
    orders = []
    streams = [TarShards(tmp_path, rank, 2).torch() for rank in range(2)]
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": method}
    loaders = [torch_data.DataLoader(stream, batch_size=2, **options) for stream in streams[: 1 + (method == "fork")]]
    for epoch in range(2):
        for stream in streams:
            stream.set_epoch(epoch)
        parts = [[i for batch in loader for i in batch["cls"].tolist()] for loader in loaders]
        parts += [[sample["cls"] for sample in stream] for stream in streams[len(parts) :]]
        assert Counter(i for part in parts for i in part) == Counter(range(n))
        orders.append(parts)
    assert orders[0] != orders[1]


@pytest.mark.long
def test_an_epoch_of_uneven_shards_equals_a_serial_step(tmp_path: Path) -> None:
    """As the docs say: each step's loss is the mean over the samples of all ranks in it, those that have left, too."""
    torch = pytest.importorskip("torch")
    import workbench.torch as hvd

    x = np.random.default_rng(0).normal(size=(11, 3))
    for number, part in enumerate(np.split(np.arange(11), [5, 9])):
        write(tmp_path / f"{number}.tar", {f"{i}.npy": npy(x[i]) for i in part})

    def gradients() -> Iterator[tuple[list[float], list[str]]]:
        model = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
        torch.nn.init.ones_(model.weight)
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=hvd.Sum)
        stream = TarShards(tmp_path, hvd.rank(), hvd.size(), shuffle=0).torch()
        for batch in torch.utils.data.DataLoader(stream, batch_size=3):
            n = hvd.allreduce(torch.tensor(float(len(batch["npy"]))), op=hvd.Sum, name="n")
            optimizer.zero_grad()
            (model(batch["npy"]).square().sum() / n).backward()
            optimizer.step()
            yield model.weight.grad.flatten().tolist(), batch["__key__"]
        hvd.join()

    ranks = workbench.run_threads(2, lambda: list(gradients()))
    assert list(map(len, ranks)) == [3, 2]  # files 0 and 2: 5 + 2 samples; file 1: 4
    for step, (found, keys) in enumerate(ranks[0]):
        rows = x[[int(key) for key in keys + (ranks[1][step][1] if step < 2 else [])]]
        weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
        (torch.from_numpy(rows) @ weight).square().mean().backward()
        assert found == pytest.approx(weight.grad.tolist(), abs=1e-12)
