"""``workbench grade``: its options, and its files, which after each notebook hold what is known by then."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Any

from workbench.cli.grade import reaper, results
from workbench.cli.grade.learners import by_learner, learner_of
from workbench.cli.grade.results import print_lines
from workbench.cli.grade.submissions import notebooks, read_all
from workbench.launch.as_command import write_named
from workbench.launch.ranks.output import log

_ABOUT = """\
Reads all notebooks. Then it runs the cells of each notebook without engines, in its own process, and judges the
exercises from another process. If code loops, crashes or ends the process, only its own cell or exercise fails. Prints
a table; the exit code is 0 if everything could be judged; the marks do not matter. instructors/guide.md says what
learners' code can still do, and what it cannot."""


def add(commands: Any, seconds: Callable[[str], float]) -> None:
    """Add the subcommand.

    Args:
        commands: argparse's subparsers.
        seconds: reads a number of seconds.
    """
    top = commands.add_parser(
        "grade",
        help="run and judge the notebooks that learners hand in",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("files", nargs="+", metavar="FILE", help="a notebook, or a folder of notebooks")
    top.add_argument("--csv", metavar="FILE", help="write a line for each exercise, after each notebook")
    top.add_argument("--junit", metavar="FILE", help="write JUnit's XML, a testsuite for each notebook")
    each = "send the points to a learning platform (LTI 1.3), as this file says"
    top.add_argument("--lti", metavar="FILE.toml", help=each)
    each = "write the points into nbgrader's gradebook of this course"
    top.add_argument("--nbgrader", metavar="FOLDER", help=each)
    each = "seconds for one notebook (default: 300)"
    top.add_argument("--deadline", type=seconds, default=300.0, metavar="SECONDS", help=each)
    each = "seconds for one statement of a cell, and for one exercise (default: 30)"
    top.add_argument("--step", type=seconds, default=30.0, metavar="SECONDS", help=each)
    top.add_argument("--memory", type=_gib, default=12.0, metavar="GIB", help="for one notebook (default: 12)")
    top.add_argument("--processes", type=_whole, default=256, metavar="N", help="it may start (default: 256)")
    each = "run the code in bubblewrap: no network, no other files, no other processes"
    top.add_argument("--sandbox", action="store_true", help=each)
    top.add_argument(
        "--as-root", action="store_true", help="run the code as root; only in a container that you delete afterwards"
    )
    top.set_defaults(handle=run)


def _gib(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.5 <= float(text) <= 1e6:
            return float(text)
    raise argparse.ArgumentTypeError("a number, at least 0.5, for Python and numpy alone take that much")


def _whole(text: str) -> int:
    with contextlib.suppress(ValueError):
        if int(text) >= 8:
            return int(text)
    raise argparse.ArgumentTypeError("a whole number, at least 8, for a notebook's process and its threads")


def run(args: argparse.Namespace) -> int:
    """Grade."""
    from workbench.cli.grade import grade, gradebook, lti  # psutil: `workbench --help` does without

    grade.check_installed()
    grade.check_user(args.as_root)
    files = {results.as_csv: args.csv, results.as_junit: args.junit}
    targets = {form: grade.writable(path) for form, path in files.items() if path}
    platform = lti.read(args.lti) if args.lti else None
    limits = {"memory": int(args.memory * (1 << 30)), "processes": args.processes}
    how = grade.How(args.deadline, args.step, args.sandbox, limits)
    if args.sandbox:
        grade.check_sandbox()
    submissions = read_all(notebooks(args.files))
    if args.nbgrader:
        gradebook.check(args.nbgrader, [one.path for one in submissions])
    graded: list[results.NotebookResult] = []
    for form, path in targets.items():
        write_named(path, form(graded).encode())
    reaper.hide()  # a notebook could else write into the pipes from its judge, through /proc
    try:
        for submission in submissions:
            graded.append(grade.Grading(submission, how).run())
            graded[-1].learner = learner_of(submission.path, args.files)
            for form, path in targets.items():
                write_named(path, form(graded).encode())
            print_lines([*results.table(graded[-1]), ""])
    finally:
        reaper.hide(False)
    print_lines([results.summary(graded)])
    open_to = list(dict.fromkeys(notebook.unbounded for notebook in graded if notebook.unbounded))
    if open_to:
        log(
            f"Not confined: {'; '.join(open_to)}. So a notebook may have changed the marks of another one, or this "
            "package: trust these marks only if you trust the learners. With --sandbox it "
            "cannot. See instructors/guide.md."
        )
    unsent = [f"--nbgrader: {line}" for line in gradebook.add(args.nbgrader, graded)] if args.nbgrader else []
    unsent += [f"--lti: {line}" for line in platform.send(by_learner(graded))] if platform else []
    for line in unsent:
        log(line)
    return int(bool(unsent) or not all(notebook.complete for notebook in graded))
