"""The practical session, run and put side by side: ``make practical``, or ``python benchmarks/practical.py``.

Starts ``examples/test_horovod.py`` and ``examples/pytorch_horovod.py`` with 1 and with 2 ranks, and prints what each
rank says of itself, time per epoch, speed-up, loss and accuracy. One thread per rank, as the scripts set it. With
``--tensorflow`` it is the session's other half, ``tensorflow_horovod_basic.py`` and ``tensorflow_horovod.py``.

The exit code is 1 if a script fails, if ranks of one run disagree about loss or accuracy, or if the accuracies differ
by more than ``--tolerance``. The default, 0.02, is 7 of the 357 test images: the global batch is the same, so the runs
make the same steps, but sums are rounded in another order, and Adam magnifies that. In TensorFlow each rank shuffles
its own piece, so the batches are others, and 0.04 is allowed, as in the session. Times are shown, never judged.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.course.practical import PracticalError, Run, places, read, table
from workbench.launch.start import mpi

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def options(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Read the command line; what is not known here is for the training with options."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="All other options go to pytorch_horovod.py, or to tensorflow_horovod.py.",
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tensorflow", action="store_true", help="the session's scripts for TensorFlow")
    parser.add_argument("--tolerance", type=float, help="how far the accuracies may be apart; 0.02, or 0.04")
    parser.add_argument("--deadline", type=float, default=600.0, metavar="SECONDS", help="of one run")
    return parser.parse_known_args(argv)


def launcher(ranks: int, script: Path) -> tuple[str, list[str]]:
    """What starts the ranks of a script, as shown and as run: for one that imports Horovod, what lets it find ours."""
    if "import horovod" in script.read_text(encoding="utf-8"):
        words = ["run", "--as-horovod", "-np", str(ranks)]
        return f"workbench {' '.join(words)}", [sys.executable, "-m", "workbench.cli.main", *words]
    return f"mpiexec -n {ranks}", mpi.command(ranks)


def start(ranks: int, script: Path, words: Sequence[str], deadline_s: float) -> str:
    """Run a script on some ranks; return what all of them printed.

    Raises:
        PracticalError: it failed, or was not done at the deadline.
    """
    shown, launch = launcher(ranks, script)
    print(f"$ {shown} python examples/{script.name} {' '.join(words)}".rstrip(), flush=True)
    command = [*launch, sys.executable, str(script), *words]
    env = mpi.environment(1) | {"PYTHONUNBUFFERED": ""}  # so that a line of a rank comes in one piece
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output = process.communicate(timeout=deadline_s)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.terminate()  # both pass it on to the ranks
        raise PracticalError(f"{script.name} with {ranks} ranks was not done after {deadline_s:g} s") from None
    finally:
        if process.poll() is None:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
    if process.returncode:
        how = f"with {ranks} ranks ended with code {process.returncode}"
        raise PracticalError(f"{script.name} {how}:\n{output[-4000:]}")
    return output


def main(argv: Sequence[str] | None = None, examples: Path = EXAMPLES) -> int:
    """Run the session; return the exit code."""
    args, words = options(argv)
    basic, name = ("tensorflow_horovod_basic", "tensorflow_horovod") if args.tensorflow else ("", "pytorch_horovod")
    tolerance = args.tolerance if args.tolerance is not None else 0.04 if args.tensorflow else 0.02
    trainings: dict[str, list[Run]] = {}
    try:
        for ranks in args.ranks:
            output = start(ranks, examples / "test_horovod.py", [], args.deadline)
            print(*places(output, ranks), sep="\n", flush=True)
        for each, more in ((basic, []), (name, words)):
            for ranks in args.ranks if each else []:
                output = start(ranks, examples / f"{each}.py", more, args.deadline)
                trainings.setdefault(each, []).append(read(output, ranks))
    except PracticalError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return max([judge(each, runs, tolerance) for each, runs in trainings.items()])


def judge(name: str, runs: Sequence[Run], tolerance: float) -> int:
    """Print a training's table, and how far the accuracies are apart; 1 if too far."""
    print(f"\n{name}.py\n{table(runs)}")
    accuracies = [run.accuracy for run in runs]
    apart = max(accuracies) - min(accuracies)
    good = apart <= tolerance
    print(f"\nThe accuracies are {apart:.4f} apart; up to {tolerance:g} is allowed: {'ok' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
