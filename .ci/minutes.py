"""Keeps the minutes that are named for a target of the Makefile true: `make quick` and `make test` end with it.

    python .ci/minutes.py test 655    a whole run took 655 s

The minutes stand in the Makefile, README.md and CONTRIBUTING.md, and are those of two cores. A run on two cores that
took a quarter more or less writes its own, and says so.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

FILES = "Makefile", "README.md", "CONTRIBUTING.md"
CORES = 2


def write(target: str, seconds: float, folder: Path) -> str:
    """Write what a run took, if what is written is more than a quarter off; what was done, or nothing."""
    named = re.compile(rf"^((?:\$ make )?{target}(?::| +#).*?about )(\d+)(?= minutes)", re.MULTILINE)
    texts = {folder / name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    said = {int(found[2]) for text in texts.values() for found in named.finditer(text)}
    if all(0.75 * each <= seconds / 60 <= 1.25 * each for each in said):
        return ""
    minutes = max(2, round(seconds / 60))
    for path, text in texts.items():
        path.write_text(named.sub(rf"\g<1>{minutes}", text), encoding="utf-8")
    return (
        f"make {target} took {minutes} minutes: written to {', '.join(FILES)}, which said {said}. If the machine was "
        f"busy, `git checkout {' '.join(FILES)}`."
    )


if __name__ == "__main__":
    if len(os.sched_getaffinity(0)) == CORES and not os.environ.get("CI"):
        print(write(sys.argv[1], float(sys.argv[2]), Path(__file__).resolve().parents[1]))
