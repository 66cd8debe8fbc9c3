"""The files of a checkpoint: what any number of ranks wrote any number reads, and no damaged byte is read."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.elastic.checkpoint import newest_complete
from workbench.elastic.checkpoint_files import (
    MANIFEST,
    DamagedError,
    complete,
    directory_of,
    divided,
    read_complete,
    replacing,
)
from workbench.elastic.checkpoint_values import NUMPY
from workbench.elastic.checkpoint_write import Attempt, prune, write
from workbench.errors import CheckpointError


def write_all(folder: Path, number: int, copies: list[dict[str, Any]], patience_s: float = 30.0) -> list[Exception]:
    """Let as many ranks as there are copies write a checkpoint, each in a thread; what they raised."""
    attempt, raised = Attempt(number, number, len(copies), f"{number:04x}"), list[Exception]()

    def rank(r: int) -> None:
        try:
            write(folder, attempt, r, copies[r], (NUMPY,), patience_s, threading.Event())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(len(copies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    return raised


def state_of(step: int, numbers: int = 1001) -> dict[str, Any]:
    """A large array, small ones, one without bytes, and plain values."""
    random = np.random.default_rng(step)
    arrays = {"w": random.normal(size=numbers), "b": np.float32(step), "none": np.zeros((0, 3))}
    return {"step": step, "model": arrays, "losses": [step / 3, float("nan")], "u": random.bytes(5)}


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Equal, arrays byte for byte."""
    pairs = [(one["model"][name], two["model"][name]) for name in ("w", "b", "none")]
    return (
        repr(one) == repr(two)
        and all(x.tobytes() == y.tobytes() and x.dtype == y.dtype and x.shape == y.shape for x, y in pairs)
        and one["u"] == two["u"]
    )


# --- sharing out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("lengths", [[], [0], [5], [1, 0, 1], [1000, 3, 17], [1] * 9], ids=str)
def test_every_byte_is_in_one_piece_and_the_shares_are_even(lengths: list[int], size: int) -> None:
    """Each byte of each array once, in order; no share is a byte longer than a fair one, rounded up."""
    shares = divided(lengths, size)
    bytes_of = [(p.array, i) for share in shares for p in share for i in range(p.start, p.stop)]
    assert bytes_of == [(array, i) for array, length in enumerate(lengths) for i in range(length)]
    assert len(shares) == size
    assert all(sum(p.stop - p.start for p in share) <= -(-sum(lengths) // size) for share in shares)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_what_n_ranks_wrote_comes_back(n: int, tmp_path: Path) -> None:
    """Equal bytes for any number of writers; each has written its share of the bytes and no more."""
    state = state_of(3)
    assert write_all(tmp_path, 7, [state] * n) == []
    values, manifest = read_complete(directory_of(tmp_path, 7), (NUMPY,))
    assert same(values, state)
    assert (manifest["number"], manifest["ranks"], len(manifest["files"])) == (7, n, n)
    sizes = [file["bytes"] for file in manifest["files"]]
    assert max(sizes) - min(sizes) < 200  # the headers differ by some words


def test_where_ranks_differ_rank_0_counts(tmp_path: Path) -> None:
    """Statistics that each rank has of its own: the checkpoint has rank 0's, and all of them, split or not."""
    copies = [state_of(3) for _ in range(4)]
    for rank, each in enumerate(copies):
        each["model"]["b"] = np.float32(rank)
        each["model"]["w"][500:] += rank
        each["step"] = rank
    assert write_all(tmp_path, 1, copies) == []
    values, _ = read_complete(directory_of(tmp_path, 1), (NUMPY,))
    assert same(values, copies[0])


def test_ranks_with_other_arrays_are_refused(tmp_path: Path) -> None:
    """The rank and the array are named, with both shapes; the checkpoint before stays the newest."""
    assert write_all(tmp_path, 1, [state_of(1)] * 2) == []
    (error,) = write_all(tmp_path, 2, [state_of(2), state_of(2, numbers=5)])
    assert "part-1-of-2" in str(error)
    assert "shape (5,)) is model['w'] (<f8, shape (1001,)) on rank 0" in str(error)
    assert complete(tmp_path) == [1]


def test_a_rank_that_cannot_write_says_so_at_once(tmp_path: Path) -> None:
    """Rank 0 need not wait: it gets the other's reason."""
    raised = write_all(tmp_path, 1, [{"x": 1}, {"x": object()}])
    assert len(raised) == 2
    assert any("Rank 1 could not write its part: 'x' is of type object" in str(error) for error in raised)
    assert complete(tmp_path) == []


def test_a_rank_that_writes_nothing_is_named(tmp_path: Path) -> None:
    """After the patience, with what to look at."""
    with pytest.raises(CheckpointError, match=r"parts of ranks \[1, 2\] did not appear .* state.checkpoint\(\)"):
        write(tmp_path, Attempt(1, 1, 3, "ab"), 0, {"x": np.ones(9)}, (NUMPY,), 0.3, threading.Event())
    assert complete(tmp_path) == []


def test_a_part_of_an_earlier_attempt_is_none_of_a_later_one(tmp_path: Path) -> None:
    """A rank that is late with the same number but another token hits nothing."""
    late = Attempt(1, 1, 2, "0ff1")
    with pytest.raises(CheckpointError):
        write(tmp_path, late, 0, state_of(1), (NUMPY,), 0.1, threading.Event())
    assert write_all(tmp_path, 1, [state_of(2)] * 2) == []
    write(tmp_path, late, 1, state_of(1), (NUMPY,), 1.0, threading.Event())
    assert same(read_complete(directory_of(tmp_path, 1), (NUMPY,))[0], state_of(2))


# --- damage -------------------------------------------------------------------------------------------


def small(step: int) -> dict[str, Any]:
    """As few bytes as make a checkpoint."""
    return {"step": step, "w": np.arange(6, dtype=np.float32) + step, "t": (1, "a")}


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with checkpoints 1 and 2, of two ranks."""
    for number in (1, 2):
        assert write_all(tmp_path, number, [small(number)] * 2) == []
    return tmp_path


def files_of_2(folder: Path) -> list[Path]:
    """Manifest and parts of checkpoint 2."""
    found = sorted(directory_of(folder, 2).iterdir())
    assert [path.name.split("-")[0] for path in found] == [MANIFEST, "part", "part"]
    return found


def newest_step(folder: Path) -> int:
    """The newest that can be read; its bytes are those that were written."""
    found = newest_complete(folder, (NUMPY,))
    assert found is not None
    step: int = found[0]["step"]
    assert repr(found[0]) == repr(small(step))
    return step


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_byte_is_watched(which: int, two: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever byte of whichever file is changed: the file is named, and the checkpoint before is taken."""
    path = files_of_2(two)[which]
    before = path.read_bytes()
    random = np.random.default_rng(which)
    for place in range(len(before)):
        changed = bytearray(before)
        changed[place] ^= 1 << int(random.integers(8))
        path.write_bytes(changed)
        with pytest.raises(DamagedError) as caught:
            read_complete(directory_of(two, 2), (NUMPY,))
        assert str(caught.value).startswith(f"{path} ") or which == 0, f"byte {place}: {caught.value}"
    caplog.clear()
    with caplog.at_level(logging.WARNING, "workbench"):
        assert newest_step(two) == 1
    (said,) = [record.getMessage() for record in caplog.records]
    assert path.name in said
    assert "The previous one is used" in said
    path.write_bytes(before)
    assert newest_step(two) == 2


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_length_is_watched(which: int, two: Path) -> None:
    """A file that is too short by any number of bytes, or longer: refused."""
    path = files_of_2(two)[which]
    before = path.read_bytes()
    for length in range(len(before)):
        path.write_bytes(before[:length])
        with pytest.raises(DamagedError):
            read_complete(directory_of(two, 2), (NUMPY,))
    path.write_bytes(before + b"\n")
    assert newest_step(two) == 1


def test_a_missing_part_is_named(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And the one before is taken."""
    path = files_of_2(two)[2]
    path.unlink()
    assert newest_step(two) == 1
    assert f"{path} is missing. The previous one is used." in caplog.text


def test_a_missing_manifest_is_a_checkpoint_that_was_not_finished(two: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out, and the log says so."""
    files_of_2(two)[0].unlink()
    assert newest_step(two) == 1
    assert "checkpoint-00000002 is incomplete" in caplog.text


def test_a_part_of_another_checkpoint_is_refused(two: Path) -> None:
    """As long as the right one, and sound in itself."""
    path = files_of_2(two)[1]
    shutil.copy(next(directory_of(two, 1).glob("part-0*")), path)
    with pytest.raises(DamagedError, match=r"part-0-of-2-\w+ belongs to another checkpoint"):
        read_complete(directory_of(two, 2), (NUMPY,))


def test_all_damaged_is_an_error(two: Path) -> None:
    """To begin anew would be worse: the error names each file."""
    for number in (1, 2):
        next(directory_of(two, number).glob("part-1*")).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"(?s)No checkpoint in .* is complete.*0002/part-1.*0001/part-1"):
        newest_complete(two, (NUMPY,))


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "part-0-of-1-aa/../../x"])
def test_a_manifest_names_no_file_elsewhere(name: str, tmp_path: Path) -> None:
    """Whoever writes a manifest by hand gets nothing read outside of its folder."""
    from workbench.elastic.checkpoint_files import write_manifest

    directory = directory_of(tmp_path, 1)
    directory.mkdir()
    files = [{"name": name, "bytes": 4, "header": ""}]
    write_manifest(directory, {"number": 1, "values": {}, "arrays": [], "files": files, "pieces": []})
    with pytest.raises(DamagedError, match="names a file"):
        read_complete(directory, (NUMPY,))


# --- deleting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_are_kept(keep: int, tmp_path: Path) -> None:
    """So many whole ones; unfinished older ones go, and what is nobody's checkpoint stays."""
    for number in (1, 2, 4, 5):
        write_all(tmp_path, number, [small(number)])
    directory_of(tmp_path, 3).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-old").mkdir()
    prune(tmp_path, keep, before=6)
    assert complete(tmp_path) == [1, 2, 4, 5][-keep:]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == sorted([*(f"checkpoint-{n:08d}" for n in complete(tmp_path)), "checkpoint-old", "notes.txt"])


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is flushed, then renamed, then its folder is flushed: a loss of power leaves no half file."""
    done, fsync, replace = list[str](), os.fsync, os.replace

    def flushed(handle: int) -> None:
        done.append(f"flush {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        fsync(handle)

    def renamed(old: Path, new: Path) -> None:
        done.append(f"rename {old.name} {new.name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    with replacing(tmp_path / "part") as file:
        file.write(b"all of it")
    assert done == ["flush .part.tmp", "rename .part.tmp part", f"flush {tmp_path.name}"]
    assert (tmp_path / "part").read_bytes() == b"all of it"
