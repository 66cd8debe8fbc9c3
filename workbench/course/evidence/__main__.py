"""``python -m workbench.course.evidence FOLDER … --key KEY --out data.csv``: the data of a class."""

import argparse
import sys
from pathlib import Path

from workbench.common.whole_file import write_whole
from workbench.course.evidence.export import COLUMNS, collect, made_key
from workbench.errors import WorkbenchError


def main() -> None:
    """Write the data, and say what is in them."""
    parser = argparse.ArgumentParser(prog="python -m workbench.course.evidence", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="a learner's, or one with one for each")
    parser.add_argument("--key", type=Path, required=True, help="for the pseudonyms; made where there is none. Keep it")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file")
    args = parser.parse_args()
    try:
        rows, said = collect(args.folders, made_key(args.key))
        args.out.touch(mode=0o600)  # which write_whole keeps
        write_whole(args.out, "".join(f"{','.join(row)}\n" for row in [COLUMNS, *rows]).encode())
    except (WorkbenchError, OSError) as error:
        sys.exit(f"workbench.course.evidence: {error}")
    print(*said, f"{args.out}: {len(rows)} rows", sep="\n")


if __name__ == "__main__":
    main()
