"""``workbench class``: serves the page until Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.cli.learn import built
from workbench.course.classroom import board, server
from workbench.errors import LaunchError


def main(argv: list[str] | None = None) -> int:
    """Serve the page; 1 if there is nothing to show."""
    parser = argparse.ArgumentParser(prog="workbench class")
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--numbers", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        found = board.learners(args.folders, args.numbers)
        if not any(each.folder.is_dir() for each in found):
            raise LaunchError(f"There is no learner's folder: {', '.join(map(str, args.folders))}")
        asked = board.questions(built() / "notebooks")
        pages, address = server.server(lambda: board.state(found, asked), args.port)
    except LaunchError as error:
        print(f"workbench class: {error}", file=sys.stderr)
        return 1
    with pages:
        print(f"{address} ({len(found)} learners; Ctrl-C ends it)", flush=True)
        try:
            pages.serve_forever()
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
