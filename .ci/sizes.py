"""For .ci/setup: how large is .venv, and how much of it is torch with all that torch alone asks for?

It needs the standard library alone. A file counts once, whatever number of names it has.
"""

import os
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path


def required(name: str) -> dict[str, Distribution]:
    """A distribution and those that it requires, as far as they are installed; without extras."""
    found: dict[str, Distribution] = {}
    wanted = [name]
    while wanted:
        name = _plain(wanted.pop())
        try:
            found[name] = distribution(name) if name not in found else found[name]
        except PackageNotFoundError:
            continue
        asked = (each for each in found[name].requires or [] if "extra ==" not in each)
        wanted += [each for each in (re.split(r"[^\w.-]", one)[0] for one in asked) if _plain(each) not in found]
    return found


def files_of(one: Distribution) -> list[Path]:
    """Its files, and what Python made of them."""
    files = [Path(one.locate_file(each)) for each in one.files or []]
    compiled = f".{sys.implementation.cache_tag}.pyc"
    return files + [each.parent / "__pycache__" / f"{each.stem}{compiled}" for each in files if each.suffix == ".py"]


def megabytes(paths: list[Path]) -> int:
    """Together, in 10^6 bytes."""
    seen = {}
    for path in paths:
        if path.is_file() and not path.is_symlink():
            about = path.stat()
            seen[about.st_ino] = about.st_size
    return round(sum(seen.values()) / 1e6)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    everything = megabytes([Path(folder, name) for folder, _, names in os.walk(sys.prefix) for name in names])
    text = f"{everything} MB"
    if torch := megabytes([file for one in required("torch").values() for file in files_of(one)]):
        text += f", of which torch and what it requires {torch} MB, all else {everything - torch} MB"
    print(text)
