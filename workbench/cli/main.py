"""The ``workbench`` command.

Each subcommand loads what it needs when it runs, so that ``workbench --help`` is there at once.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from workbench import config
from workbench._version import __version__
from workbench.cli import about, convert, flags, learn
from workbench.cli.class_server import command as class_server
from workbench.cli.face import HelpAll, Parser, Wide
from workbench.cli.flags import with_flags
from workbench.cli.grade import badge
from workbench.cli.grade import command as grade
from workbench.cli.grade.results import print_lines
from workbench.cli.jobs import command as k8s
from workbench.cli.standard_input import with_script
from workbench.errors import LaunchError
from workbench.launch.as_command import as_command, become, write_named
from workbench.launch.ranks.output import Printer, log

if TYPE_CHECKING:
    from workbench.launch.hosts.agent_connections import Target
    from workbench.launch.start.starters import JobSpec

_RUN = """\
Starts N ranks of a command on this machine: with mpiexec if one matches mpi4py, otherwise one by one. Each line of
output begins with its rank, [1]<stdout>:. When one rank fails, all are ended; the exit code is that of the first rank
that failed. The ranks' standard input is empty; `python - < train.py` gives all of them the script."""
DESCRIPTION = "Learn, teach and use distributed deep learning."
EXAMPLES = """\
Example: workbench run -np 4 python train.py
`workbench COMMAND --help` shows details. Exit code: 0 success, 1 failure, 2 wrong usage; `run`: the failed rank's."""
_EXAMPLES = """\
examples:
  workbench run -np 4 python train.py --epochs 3
  workbench run -np 2 --as-horovod python horovod_script.py
  workbench run -np 2 --as-ddp python ddp_script.py
  workbench run -np 2 --gloo -- python -m package.train
`workbench run --help-all` shows all options: tuning, timeline, stall check, and the other options of horovodrun."""


_TAKE_OPTIONS = ("--sbatch", "--mpi-args", "--binding-args")  # of another program, as one text


def parser(all_shown: bool = False) -> Parser:
    """The parser of all subcommands.

    Args:
        all_shown: does the help of ``run`` show all options, or those that most jobs need?
    """
    top = Parser(prog="workbench", description=DESCRIPTION, epilog=EXAMPLES)
    top.add_argument("-v", "--version", action="version", version=__version__)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", dest="subcommand")
    start = commands.add_parser(
        "run",
        help="start the ranks of a job, on this machine or on several",
        description=_RUN,
        epilog=_EXAMPLES,
        formatter_class=Wide,
        allow_abbrev=False,
        usage="workbench run -np N [options] COMMAND …",
    )
    start.add_argument("-v", "--version", action="version", version=__version__)
    start.add_argument("--help-all", action=HelpAll, whole=lambda: parser(True), help="all options, with horovodrun's")
    start.add_argument("-cb", "--check-build", action="store_true", help="as `workbench check-build`")
    flags.add_to(start, all_shown)
    start.set_defaults(handle=_run)
    _add_slurm(commands)
    k8s.add(commands)
    convert.add(commands)
    learn.add(commands)
    grade.add(commands, _seconds)
    badge.add(commands)
    doctor = commands.add_parser(
        "doctor",
        help="test what a job needs here: MPI, communication of ranks, GPUs",
        description="Prints a line for each check: ✓ success, ! a warning, ✗ a failure, each with what to do about it. "
        "The exit code is 0 if there is no failure.",
    )
    doctor.add_argument(
        "-H", "--hosts", default="", help="a,b,… test these hosts instead, and that they reach each other"
    )
    doctor.add_argument("--hostfile", default="", help="the same, read from a file")
    doctor.add_argument("-p", "--ssh-port", type=int, default=0, help="sshd's port there")
    doctor.add_argument("-i", "--ssh-identity-file", default="", help="the private key for the other hosts")
    doctor.add_argument("--network-interface", default="", help="eth0,… the interfaces that may connect the hosts")
    doctor.set_defaults(handle=_doctor)
    about.add(commands, parser)
    compare = commands.add_parser(
        "report",
        help="compare the reports of jobs",
        description="Prints what `workbench run --report` has found of several jobs, side by side.",
    )
    compare.add_argument("reports", nargs="+", metavar="FILE", help="pages that workbench run --report has written")
    compare.set_defaults(handle=_compare)
    check = commands.add_parser("check-build", help="show the frameworks and libraries that can be used")
    check.set_defaults(handle=_check_build)
    return top


def _add_slurm(commands: Any) -> None:
    slurm = commands.add_parser(
        "slurm",
        help="write a batch script for Slurm, and submit it",
        description="Writes a batch script that starts ranks on all nodes of a job, and shows it. Partition, account, "
        "reservation and modules come from workbench.toml, if there is one.",
        usage="workbench slurm [options] FILE COMMAND …",
    )
    slurm.add_argument("file", metavar="FILE", help="the script; an existing one is replaced")
    numbers = {
        "nodes": (1, "nodes"),
        "tasks-per-node": (1, "ranks on each"),
        "gpus-per-node": (0, "GPUs of each node; its ranks see all of them"),
        "gpus-per-task": (
            0,
            "GPUs of each rank; it sees only these, so GPUs exchange nothing directly (P2P, CUDA IPC)",
        ),
        "cpus-per-task": (0, "cores of each rank"),
    }
    for name, (default, text) in numbers.items():
        slurm.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    slurm.add_argument("--time", default="", metavar="TIME", help="time limit of the job: 30:00 is half an hour")
    slurm.add_argument("--name", default="workbench", help="of the job")
    slurm.add_argument(
        "--output", default="workbench-%j.out", metavar="FILE", help="file for its output; %%j: its number"
    )
    slurm.add_argument("--sbatch", default="", metavar="TEXT", help="further options of sbatch, as one text")
    slurm.add_argument("--submit", action="store_true", help="submit it, and show its output until it ends")
    slurm.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs: python train.py …")
    slurm.set_defaults(handle=_slurm)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < 1e6:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        words: what follows ``workbench``; by default this process's own.

    Returns:
        The exit code.
    """
    _open_streams()
    words = sys.argv[1:] if words is None else words
    if class_server.asked(words):
        return as_command(lambda: class_server.run(words[1:]))
    return as_command(lambda: _main(parsed(words)))


def _main(args: argparse.Namespace) -> int:
    try:
        os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"The working directory cannot be used: {error.strerror}. Was it deleted? Go to another one first: cd"
        ) from None
    code: int = args.handle(args) if args.subcommand else about.overview(parser())
    return code


def _open_streams() -> None:
    """Open what this process was started without (``>&-``), or the next file that is opened takes its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - as long as this process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - as long as this process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line. argparse takes the text after ``--sbatch`` for the next option where it begins like one."""
    joined, pairs = list(words), range(1, len(words))
    if joined[:1] == ["lab"] and joined[1:2] not in (["-h"], ["--help"], ["--"]):
        joined.insert(1, "--")  # all of it is JupyterLab's
    if joined[:1] == ["convert"] and "--" in joined:  # what follows is the script's
        end = joined.index("--")
        return parser().parse_args(joined[:end], argparse.Namespace(words=joined[end + 1 :]))
    while at := next((i for i in pairs if joined[i - 1] in _TAKE_OPTIONS and joined[i].startswith("-")), 0):
        unseen = io.StringIO()
        with contextlib.suppress(SystemExit), contextlib.redirect_stderr(unseen), contextlib.redirect_stdout(unseen):
            return parser().parse_args(joined)  # such words may be part of the ranks' command
        joined[at - 1 : at + 1] = [f"{joined[at - 1]}={joined[at]}"]
        pairs = range(1, len(joined))
    return parser().parse_args(joined)


def _check_build(args: argparse.Namespace) -> int:
    from workbench.diagnostics.check_build import report

    print(report())
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from workbench.diagnostics.doctor import examine, show
    from workbench.diagnostics.finding import exit_code, summary

    if args.hosts or args.hostfile:
        return _doctor_on_hosts(args)
    findings = show(examine(), sys.stdout)
    print(summary(findings))
    return exit_code(findings)


def _doctor_on_hosts(args: argparse.Namespace) -> int:
    from workbench.diagnostics.doctor import examine_hosts, printable
    from workbench.launch.hosts.host_plan import find_hosts
    from workbench.launch.hosts.remote_shell import Ssh

    ssh = Ssh(args.ssh_port, args.ssh_identity_file)
    networks = [name for name in args.network_interface.split(",") if name]
    for line in examine_hosts(find_hosts(args.hosts, args.hostfile, None, ssh), networks):
        print(printable(line, sys.stdout.encoding or "utf-8"), flush=True)
    return 0


def _slurm(args: argparse.Namespace) -> int:
    import shlex
    from pathlib import Path

    from workbench.launch import site
    from workbench.launch.slurm import batch

    if not flags.command(args) or (args.command[0] != "--" and args.command[0].startswith("-")):
        raise LaunchError(
            "First options, then a file, then a command: workbench slurm --nodes 2 my.sbatch python train.py"
        )
    if min(args.nodes, args.tasks_per_node) < 1 or min(args.gpus_per_task, args.gpus_per_node, args.cpus_per_task) < 0:
        raise LaunchError("A job has at least 1 node with 1 task, and no number is negative.")
    if args.gpus_per_task:
        log(
            "--gpus-per-task: each rank sees only its own GPU, so GPUs of a host exchange nothing directly (P2P, CUDA "
            f"IPC). --gpus-per-node {args.gpus_per_task * args.tasks_per_node} gives as many GPUs and allows it."
        )
    names = ("nodes", "tasks_per_node", "gpus_per_node", "gpus_per_task", "cpus_per_task", "time", "name", "output")
    wanted = batch.Wanted(**{name: getattr(args, name) for name in names}, options=shlex.split(args.sbatch))
    activate = Path(sys.executable).parent / "activate"
    text = batch.script(wanted, site.read(), str(activate) if activate.exists() else "", flags.command(args))
    write_named(Path(args.file), text.encode())
    if not args.submit:
        print_lines([text.rstrip()])
        log(f"written to {args.file}; sbatch {args.file} submits it, and so does --submit")
        return 0
    state = batch.follow(batch.submit([args.file], log), log, sys.stdout.write)
    return int(state != "COMPLETED")


def _run(args: argparse.Namespace) -> int:
    if args.check_build:
        return _check_build(args)
    if args.config_file:
        flags.apply_file(args, args.config_file)
    args.command = with_script(flags.command(args), sys.stdin)
    if args.check:
        return _check(args)
    if args.watch:
        return _watched(args)
    if args.report:
        return _reported(args)
    if args.measured:
        raise LaunchError("--measured is compared with the job's steps in its report: give --report FILE.html as well.")
    if flags.is_elastic(args):
        return _run_elastic(args)
    return _run_ranks(args, *_targets(args))


def _watched(args: argparse.Namespace) -> int:
    """The job, and a page in this folder if a call of torch's groups has failed."""
    from workbench.cli.job_report import reported

    if args.as_ddp or flags.is_elastic(args):
        raise LaunchError("--watch is for torch's own backends, in a job of fixed size: give no --as-ddp, no --min-np.")
    page = f"workbench-watch-{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.html"
    with reported(page, flags.command(args), "", "workbench.observe.watched", "WORKBENCH_WATCH") as job:
        # Nobody waits for an answer, so announcements are held back, and a step takes no longer.
        more = {**job.variables, **config.torch_group_variables(takes=False), "WORKBENCH_FUSION_WINDOW_S": "0.1"}
        job.code = _reported(args, more) if args.report else _run_ranks(args, *_targets(args), more)
    return job.code


def _reported(args: argparse.Namespace, more: Mapping[str, str] | None = None) -> int:
    from workbench.cli.job_report import reported

    if flags.is_elastic(args):
        raise LaunchError("--report is for jobs of fixed size: an elastic job has other ranks in each epoch.")
    command = flags.command(args)
    with reported(args.report, command, args.measured or "") as job:
        job.code = _run_ranks(args, *_targets(args), {**job.variables, **(more or {})})
    return job.code


def _compare(args: argparse.Namespace) -> NoReturn:
    become("workbench.observe.report", "compare", *args.reports)


def _run_ranks(args: argparse.Namespace, n: int, targets: list[Target], more: Mapping[str, str] | None = None) -> int:
    task = _task(args, n, targets)
    task = replace(task, env={**task.env, **(more or {})})
    if task.starter != "gloo":
        from workbench.launch.start import mpi

        mpi.ask_library()  # it answers while what follows is imported
    from workbench.launch.chaos import with_chaos
    from workbench.launch.hosts.ranks_on_hosts import ranks_on
    from workbench.launch.start.run import run

    for line in flags.warnings(args):
        log(line)
    if args.sync:
        from workbench.launch.sync import sync

        sync(targets, os.getcwd(), log, bool(args.verbose))
    networks = [name for name in (args.network_interfaces or "").split(",") if name]
    ranks, labels = ranks_on(targets, task.env, n, networks, args.gpus or "")
    timestamps, folder = bool(args.prefix_output_with_timestamp), args.output_filename or ""
    printer = Printer(sys.stdout, sys.stderr, n, timestamps, folder, labels)
    with with_chaos(args.chaos, task, False, log) as task:
        outcome = run(task, printer, log, bool(args.verbose), ranks=ranks)
    if outcome.text:
        log(outcome.text)
    return outcome.code


def _check(args: argparse.Namespace) -> int:
    """The first steps of a script, and what is wrong in them."""
    from workbench.diagnostics.first_steps.report import events, recorded, report
    from workbench.launch.hosts.remote_shell import LocalShell

    args.num_proc = 2 if args.num_proc is None else args.num_proc
    n, targets = _targets(args)
    if flags.is_elastic(args) or not all(isinstance(target.shell, LocalShell) for target in targets):
        raise LaunchError("--check compares ranks of this machine, in a job of fixed size: leave the hosts out.")
    if n < 2:
        raise LaunchError("--check compares ranks, so it needs two: workbench run --check -np 2 python train.py")
    with recorded() as (folder, variables):
        code = _run_ranks(args, n, targets, variables)
        lines, wrong = report(events(folder, n), code)
    print_lines(lines)
    return code or wrong


def _run_elastic(args: argparse.Namespace) -> int:
    from workbench.launch.chaos import with_chaos
    from workbench.launch.elastic.command import run_elastic

    n, targets = _targets(args)
    with with_chaos(args.chaos, _task(args, n, targets), True, log) as task:
        outcome = run_elastic(args, task, targets, log)
    if outcome.text:
        log(outcome.text)
    return outcome.code


def _targets(args: argparse.Namespace) -> tuple[int, list[Target]]:
    from workbench.launch.hosts.host_plan import find_hosts
    from workbench.launch.hosts.remote_shell import Ssh

    if not flags.command(args):
        raise LaunchError("There is no command to run: workbench run -np 2 python train.py")
    ssh = Ssh(args.ssh_port or 0, args.ssh_identity_file or "")
    script, slots = args.host_discovery_script or "", args.slots_per_host or 1
    targets = find_hosts(args.hosts or "", args.hostfile or "", args.num_proc, ssh, script, slots)
    n = args.num_proc if args.num_proc is not None else sum(target.slots for target in targets)
    if n < 1:
        raise LaunchError("How many ranks? Give -np N, at least 1.")
    return n, targets


def _task(args: argparse.Namespace, n: int, targets: Sequence[Target]) -> JobSpec:
    from workbench.launch.hosts.remote_shell import LocalShell
    from workbench.launch.start.starters import JobSpec, check_command, choose, environment

    here = all(isinstance(target.shell, LocalShell) for target in targets)
    env = environment(n, bool(args.as_horovod), _pinned(n, args.gpus or "") if here else {})
    env = with_flags(env, flags.variables(args)) | (config.torch_group_variables() if args.as_ddp else {})
    check_command(flags.command(args), env)
    return JobSpec(
        n=n,
        command=flags.command(args),
        env=env,
        starter=choose(args.mpi, args.gloo, env),
        mpi_args=flags.mpi_words(args),
        start_timeout_s=config.start_timeout_s(env),
    )


def _pinned(n: int, asked: str) -> dict[str, str]:
    if not asked and not (config.batch_job() and config.visible_gpus()):
        return {}
    from workbench.launch.slurm.allocation import by_slurm
    from workbench.launch.start.gpus import pin

    if asked:
        return dict(pin(n, asked).env)
    from workbench.launch.slurm.allocation import gpus_here

    job = gpus_here()
    job.check(dict.fromkeys(job.hosts, n))
    return by_slurm(n, job)


if __name__ == "__main__":
    sys.exit(main())
