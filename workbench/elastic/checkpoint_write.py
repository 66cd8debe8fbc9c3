"""One attempt to write a checkpoint: what a rank does, and what rank 0 does besides."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.elastic.checkpoint_files import (
    MANIFEST,
    ArrayPiece,
    checksum,
    complete,
    directory_of,
    divided,
    flush_folder,
    numbers,
    part_name,
    read_header,
    replacing,
    write_manifest,
    write_part,
)
from workbench.elastic.checkpoint_values import ArrayKind, Stored, encode
from workbench.errors import CheckpointError

_CUT_SHORT_S, _POLL_S = 5.0, (0.002, 0.1)


@dataclass(frozen=True)
class Attempt:
    """One checkpoint that all ranks begin to write at the same commit.

    Attributes:
        number: higher than that of any other in the folder.
        commit: which commit it is of.
        size: the number of ranks.
        token: no other attempt has it.
    """

    number: int
    commit: int
    size: int
    token: str

    def part(self, rank: int | str) -> str:
        """The name of a rank's file."""
        return part_name(rank, self.size, self.token)

    def failure(self, rank: int) -> str:
        """The name of the file in which a rank tells rank 0 why it has written none."""
        return f"failed-{self.part(rank)}"


def write(
    folder: Path,
    attempt: Attempt,
    rank: int,
    values: Mapping[str, Any],
    kinds: Sequence[ArrayKind],
    patience_s: float,
    cut_short: threading.Event,
) -> None:
    """Write this rank's part; on rank 0, wait for the others' and make the checkpoint whole.

    Raises:
        CheckpointError: a part of another rank is missing or does not fit; something is not plain.
        OSError: the disk is full, the folder is gone, and so on.
    """
    directory = directory_of(folder, attempt.number)
    with suppress(FileExistsError):
        directory.mkdir()  # not its parents: a folder that is gone may be a disk that is not mounted
    try:
        plain, arrays = encode(values, kinds)
        shares = divided([each.nbytes for each in arrays], attempt.size)
        write_part(directory / attempt.part(rank), attempt.token, shares[rank], arrays)
    except Exception as error:
        if rank != 0:
            with suppress(OSError), replacing(directory / attempt.failure(rank)) as file:
                file.write(str(error).encode()[:2000])
        raise
    if rank == 0:
        mine = [[checksum(arrays[each.array], each) for each in share] for share in shares[1:]]
        _wait_for_parts(directory, attempt, patience_s, cut_short)
        rows, files = _put_together(directory, attempt, shares, arrays, mine)
        flush_folder(directory)
        flush_folder(folder)
        table = [{"name": each.name, **each.about, "nbytes": each.nbytes} for each in arrays]
        about = {"number": attempt.number, "commit": attempt.commit, "ranks": attempt.size}
        write_manifest(directory, {**about, "values": plain, "arrays": table, "files": files, "pieces": rows})


def _wait_for_parts(directory: Path, attempt: Attempt, patience_s: float, cut_short: threading.Event) -> None:
    """Until the other ranks' files are there."""
    missing, seen, pause, until = set(range(1, attempt.size)), -1, _POLL_S[0], float("inf")
    while missing := {rank for rank in missing if not (directory / attempt.part(rank)).exists()}:
        for rank in missing:
            with suppress(FileNotFoundError):
                text = (directory / attempt.failure(rank)).read_text(errors="replace")
                raise CheckpointError(f"Rank {rank} could not write its part: {text}")
        now, patience_s = time.monotonic(), _CUT_SHORT_S if cut_short.is_set() else patience_s
        if (grown := _bytes_in(directory)) != seen:
            seen, until = grown, now + patience_s
        until = min(until, now + patience_s)
        if now > until:
            raise CheckpointError(
                f"The parts of ranks {sorted(missing)} did not appear in {directory} for {patience_s:g} s. Does every "
                "rank call state.checkpoint(), and do all hosts see this folder?"
            )
        time.sleep(pause)
        pause = min(2 * pause, _POLL_S[1])


def _bytes_in(directory: Path) -> int:
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # renamed meanwhile
                total += entry.stat().st_size
    return total


def _put_together(
    directory: Path, attempt: Attempt, shares: list[list[ArrayPiece]], arrays: Sequence[Stored], mine: list[list[str]]
) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """Where each piece lies, and the files; rank 0 writes what differs from its own copy.

    Args:
        directory, attempt, arrays: see :func:`write`.
        shares: the pieces of each rank.
        mine: the checksums that rank 0 has for the pieces of ranks 1, 2, ….
    """
    rows: list[list[Any]] = []
    files: list[dict[str, Any]] = []
    different: list[ArrayPiece] = []
    table = [{"name": each.name, **each.about, "nbytes": each.nbytes} for each in arrays]

    def add(part: str, wanted: Sequence[str] | None) -> None:
        header, digest, offset = read_header(directory / part)
        if header["arrays"] != table:
            raise CheckpointError(f"{part}: {_first_difference(header['arrays'], table)} Make the ranks equal.")
        for index, (array, start, stop, crc) in enumerate(header["pieces"]):
            if wanted is None or wanted[index] == crc:
                rows.append([array, start, stop, part, offset, crc])
            else:
                different.append(ArrayPiece(array, start, stop))
            offset += stop - start
        size = (directory / part).stat().st_size
        if size != offset:
            raise CheckpointError(f"{directory / part} has {size} bytes instead of {offset}.")
        files.append({"name": part, "bytes": size, "header": digest})

    for rank in range(attempt.size):
        add(attempt.part(rank), mine[rank - 1] if rank else None)
    if different:
        write_part(directory / attempt.part("x"), attempt.token, different, arrays)
        add(attempt.part("x"), None)
    return rows, files


def _first_difference(theirs: list[Any], ours: list[Any]) -> str:
    for one, two in zip(theirs, ours, strict=False):
        if one != two:
            return f"its array {_words(one)} is {_words(two)} on rank 0."
    return f"it has {len(theirs)} arrays, and rank 0 has {len(ours)}."


def _words(about: Mapping[str, Any]) -> str:
    return f"{about['name']} ({about['dtype']}, shape {tuple(about['shape'])})"


def prune(folder: Path, keep: int, before: int) -> None:
    """Of the checkpoints with smaller numbers, delete all but the newest whole ones, and what was never finished.

    A manifest goes first, so that what is left by a kill meanwhile counts as never finished.
    """
    try:
        kept = complete(folder)[-keep:]
        for number in numbers(folder):
            if number < before and number not in kept:
                directory = directory_of(folder, number)
                (directory / MANIFEST).unlink(missing_ok=True)
                flush_folder(directory)
                shutil.rmtree(directory)
    except FileNotFoundError:
        pass  # without the folder the writer will say so
    except OSError as error:
        logging.getLogger("workbench").warning("checkpoint: an old one could not be deleted: %s", error)
