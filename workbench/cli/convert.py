"""``workbench convert``: a script for one process, or for another library, becomes one for N ranks."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.common.extras import cure, has
from workbench.errors import LaunchError
from workbench.launch.as_command import write_named
from workbench.launch.ranks.output import log

if TYPE_CHECKING:
    from workbench.convert.conversion import Converted

_WHAT = """\
Reads a training script for one process (PyTorch, Keras, TensorFlow), for Horovod, DistributedDataParallel or
Accelerate, and prints one for N ranks, with a comment at each change. What is not certain stays as it is, below a
comment "Decide: ..." that says what you have to decide. The script itself is not changed, unless --in-place says so.
Exit code 1: refused, or the check found a difference; 3: there is something to decide."""
_EXAMPLES = """\
examples:
  workbench convert train.py -o train_ranks.py
  workbench convert train.py --explain
  workbench convert train.py --check -- --epochs 3      the words after -- are the script's"""


_UNDECIDED = 3  # the exit code


def add(commands: Any) -> None:
    """Add the command."""
    convert = commands.add_parser(
        "convert",
        help="make a script for N ranks out of one for one process, Horovod, DDP or Accelerate",
        description=_WHAT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="workbench convert FILE [options] [-- words of the script]",
    )
    convert.add_argument("file", type=Path, metavar="FILE", help="the script")
    convert.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there; an existing file stays")
    convert.add_argument("--in-place", action="store_true", help="write it over the script")
    convert.add_argument("--diff", action="store_true", help="show the changed lines, as a unified diff")
    convert.add_argument("--explain", action="store_true", help="show each step: which lines, and why")
    convert.add_argument(
        "--check", action="store_true", help="run ten steps on 1 rank and on 2, and compare losses and weights"
    )
    convert.add_argument("-np", type=int, default=2, metavar="N", help="ranks for --check (default: 2)")
    convert.add_argument(
        "--to", choices=("workbench", "ddp"), default="workbench", help="ddp: from the workbench to PyTorch's own"
    )
    convert.add_argument(
        "--loss", choices=("mean", "sum"), default="", help="what the loss is over the samples of a batch"
    )
    convert.add_argument(
        "--scale-lr",
        action="store_true",
        help="each rank keeps the whole batch size, and the learning rate is multiplied by the number of ranks",
    )
    convert.set_defaults(handle=_convert)


def _convert(args: argparse.Namespace) -> int:
    if not has("libcst"):
        raise LaunchError(f"workbench convert needs libcst, which is not installed in this Python: {cure('convert')}")
    from workbench.convert.conversion import Options, convert
    from workbench.convert.source import read

    if args.in_place and args.output:
        raise LaunchError("--in-place writes over the script, and -o into another file: give one of the two.")
    if args.output and args.output.exists():
        raise LaunchError(f"{args.output} exists already, and is not replaced: give another name.")
    if args.check and args.scale_lr:
        raise LaunchError("--check compares equal trainings; with --scale-lr the ranks train on larger batches.")
    source = read(args.file)
    converted = convert(str(args.file), source.text, Options(args.to, args.loss, args.scale_lr))
    to = args.file if args.in_place else args.output
    if to:
        _write(to, converted.after, source.encoding)
    _show(args, converted, bool(to))
    if args.check and not _checked(args, converted):
        return 1
    return _UNDECIDED if converted.edits.undecided else 0


def _write(to: Path, text: str, encoding: str) -> None:
    try:
        write_named(to, text.encode(encoding))
    except UnicodeEncodeError as error:
        raise LaunchError(f"{to} cannot be written: {error}.") from None
    log(f"written to {to}; workbench run -np 2 python {to} starts it")


def _show(args: argparse.Namespace, converted: Converted, is_written: bool) -> None:
    from workbench.convert.explain import explain

    if args.diff:
        sys.stdout.write(diff(str(args.file), converted))
    if args.explain:
        print(explain(args.file.name, converted))
    if not (args.diff or args.explain or args.check or is_written):
        sys.stdout.write(converted.after)
    for line, text in sorted(set(converted.edits.notes)):
        log(f"line {line}: {text}")
    if undecided := converted.edits.undecided:
        log(f"{len(undecided)} to decide, each in a comment at its line:")
        for reason in undecided:
            log(f"  {reason}")


def diff(name: str, converted: Converted) -> str:
    """The changed lines, which ``patch`` understands."""
    before, after = (each.splitlines(keepends=True) for each in (converted.before, converted.after))
    lines = difflib.unified_diff(before, after, name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _checked(args: argparse.Namespace, converted: Converted) -> bool:
    from workbench.convert.check.compare import compare, table

    if args.np < 2:
        raise LaunchError("--check compares 1 rank with several: give -np 2 or more.")
    found = compare(converted, args.file, getattr(args, "words", []), args.np)
    print(table(found))
    return found.agrees
