"""How much ``workbench convert`` makes of scripts that others have published.

    python tests/helpers/public_scripts.py FOLDER

FOLDER has the repositories of ``tests/convert/public.tsv``, each at the commit that is named there, as OWNER+NAME. What
became of each script is written into that file, which says it again in docs/how-to/convert-your-script.md.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIST = Path(__file__).parents[1] / "convert" / "public.tsv"
COLUMNS = ("repository", "commit", "path", "result")


def scripts() -> Iterator[dict[str, str]]:
    """Those of the list."""
    with LIST.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter="\t")


def counts() -> Counter[str]:
    """Result → number of scripts: converted, to decide, refused."""
    return Counter(each["result"].split(":")[0].split(" (")[0] for each in scripts())


def result(path: Path) -> str:
    """What becomes of a script."""
    from workbench.convert.conversion import convert
    from workbench.convert.source import RefusedError, read

    try:
        new = convert(path.name, read(path).text)
    except RefusedError as error:
        return f"refused: {error.reasons[0].text}"
    compile(new.after, path.name, "exec")
    return f"to decide ({len(new.edits.undecided)})" if new.edits.undecided else "converted"


def main(folder: Path) -> None:
    """Convert all of them again, and write the list."""
    found = [
        each | {"result": result(folder / each["repository"].replace("/", "+") / each["path"])} for each in scripts()
    ]
    with LIST.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    print(counts())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
