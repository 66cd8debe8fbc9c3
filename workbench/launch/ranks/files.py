"""The files of a task, in a folder that its ranks find as a word of their command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = "{folder}"
"""A word of a task's command; it is replaced by the path of the folder with its files."""
_FILES = "files"  # the name of that folder, within the job's


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder of the files, with these in it.

    Args:
        folder: the job's.
        files: contents by name.
    """
    (folder / _FILES).mkdir()
    for name, content in files.items():
        (folder / _FILES / Path(name).name).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    """What is in it now: what was written there at the start, and what ranks have left."""
    there = folder / _FILES
    return {path.name: path.read_bytes() for path in there.iterdir()} if there.is_dir() else {}


def command(folder: Path, words: Sequence[str]) -> list[str]:
    """A command that knows the folder.

    Example:
        >>> command(Path("/tmp/job"), ["python", FOLDER])
        ['python', '/tmp/job/files']
    """
    return [str(folder / _FILES) if word == FOLDER else word for word in words]


def listed(files: Mapping[str, bytes]) -> list[tuple[str, int]]:
    """Names and lengths, for a message whose data are the contents one behind the other."""
    return [(name, len(content)) for name, content in files.items()]


def unlisted(names: Sequence[tuple[str, int]], data: bytes) -> dict[str, bytes]:
    """The files of such a message.

    Example:
        >>> files = {"a": b"1", "b": b"23"}
        >>> unlisted(listed(files), b"".join(files.values())) == files
        True
    """
    found = {}
    for name, length in names:
        found[name], data = data[:length], data[length:]
    return found
