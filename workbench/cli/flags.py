"""The options of ``workbench run``: horovodrun's, under their names.

``--help`` shows those that most jobs need, ``--help-all`` each of them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import BINDINGS, HOROVOD_NAMES
from workbench.errors import LaunchError

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
_ALIKE = (
    *("cache_capacity", "hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "autotune"),
    *("autotune_warmup_samples", "autotune_steps_per_sample", "autotune_bayes_opt_max_samples"),
    *("autotune_gaussian_process_noise", "timeline_mark_cycles", "mpi_threads_disable", "num_nccl_streams"),
    *("gloo_timeout_seconds", "log_level", "start_timeout"),
)
# A flag of `workbench run`, without dashes → the variable that it sets for the ranks, and the factor between their
# units. Names and units are horovodrun's; `--bind` is ours.
VARIABLES: dict[str, tuple[str, float]] = {
    **{name: (f"HOROVOD_{name.upper()}", 1) for name in _ALIKE},
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", 1 << 20),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", 1),
    "autotune_log_file": ("HOROVOD_AUTOTUNE_LOG", 1),
    "timeline_filename": ("HOROVOD_TIMELINE", 1),
    "no_stall_check": ("HOROVOD_STALL_CHECK_DISABLE", 1),
    "stall_check_warning_time_seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", 1),
    "stall_check_shutdown_time_seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 1),
    "log_without_timestamp": ("HOROVOD_LOG_HIDE_TIME", 1),
    "bind": ("WORKBENCH_BIND", 1),
}


@dataclass(frozen=True)
class Flag:
    """One option.

    Args:
        names: as typed.
        help: one line.
        kind: what its value is: int, float, str; bool for an option without a value.
        const: for bool, what it sets.
        dest: the attribute; by default from the last name.
        choices: what is allowed.
        idle: it is accepted but has no effect; :func:`warnings` reports it.
        count: how many values it takes; 0: one.
        shown: has it a line of its own in the help? An option that switches another one off stands in that one's line.
    """

    names: tuple[str, ...]
    help: str
    kind: Any = bool
    const: bool = True
    dest: str = ""
    choices: tuple[str, ...] | None = None
    idle: bool = False
    count: int = 0
    shown: bool = True

    @property
    def target(self) -> str:
        """The attribute that it sets."""
        return self.dest or self.names[-1].lstrip("-").replace("-", "_")

    def add_to(self, group: argparse._ArgumentGroup, shown: bool = True) -> None:
        """Add it to a parser's group; not ``shown``: without a line in the help."""
        text = self.help if shown and self.shown else argparse.SUPPRESS
        common: dict[str, Any] = {"dest": self.target, "default": None, "help": text}
        if self.kind is bool:
            group.add_argument(*self.names, action="store_const", const=self.const, **common)
        else:
            metavar = None if self.choices else {int: "N", float: "X", str: "TEXT"}[self.kind]
            common |= {"nargs": self.count} if self.count else {}
            group.add_argument(*self.names, type=self.kind, choices=self.choices, metavar=metavar, **common)


def _flags(kind: Any, idle: bool = False, **texts: str) -> list[Flag]:
    return [Flag((f"--{name.replace('_', '-')}",), text, kind, idle=idle) for name, text in texts.items()]


def _switches(**texts: str) -> list[Flag]:
    """Each with its ``--no-`` form."""
    found = []
    for name, text in texts.items():
        words = name.replace("_", "-")
        found += _pair(f"--{words}", f"--no-{words}", name, text)
    return found


def _pair(on: str, off: str, dest: str, text: str) -> list[Flag]:
    return [Flag((on,), f"{text}; {off}: not", dest=dest), Flag((off,), "", const=False, dest=dest, shown=False)]


_BIND = "each rank uses only its share of the cores, or one NUMA node; auto (default): core, if the cores are free"
GROUPS: dict[str, list[Flag]] = {
    "ranks": [
        Flag(("-n", "-np", "--num-proc"), "number of ranks (default: the number of slots of all hosts)", int),
        Flag(("-H", "--hosts"), "host:slots,… Other machines than this one are reached by ssh", str),
        Flag(("-hostfile", "--hostfile"), "file with lines `host slots=N`", str),
        Flag(("--host-discovery-script",), "a program that prints host:slots, one a line; the job is elastic", str),
        Flag(("--slots", "--slots-per-host"), "number of slots of hosts that it prints without a number", int),
        Flag(("--mpi",), "insist on mpiexec"),
        Flag(("--gloo",), "plain processes, without MPI"),
        Flag(("--mpi-args",), "further arguments for mpiexec, as one text", str),
        Flag(
            ("--start-timeout",),
            "most seconds between the start of one rank and the next (default: HOROVOD_START_TIMEOUT, or 30)",
            float,
        ),
        Flag(("--gpus",), "each rank sees one GPU: auto, how many, or 0,2 or uuids; none; all (default)", str),
        Flag(("--bind",), _BIND, str, choices=BINDINGS),
        Flag(("--binding-args",), "arguments for mpiexec that bind the ranks, as one text, instead of --bind", str),
        Flag(("--as-horovod",), "`import horovod` in the ranks imports the workbench"),
        Flag(("--as-ddp",), "torch's groups that ask for gloo or nccl get the workbench's ranks"),
        Flag(("--watch",), "torch's groups keep their backend; who keeps others waiting is named, and a page written"),
        Flag(("--report",), "FILE.html: how the job went: steps, waiting, memory, a timeline; one file", str),
        Flag(("--measured",), "FILE of workbench.measure(…).save(): the report compares steps with a prediction", str),
        Flag(
            ("--check",),
            "run the first steps only, on 2 ranks unless -np says more, and name known mistakes with their lines",
        ),
    ],
    "elastic": [
        Flag(
            ("--min-np", "--min-num-proc"), "the job continues while at least this many ranks live (default: -np)", int
        ),
        Flag(("--max-np", "--max-num-proc"), "and has at most this many ranks (default: the number of slots)", int),
        *_flags(int, reset_limit="the job ends after this many changes of its ranks (default: no limit)"),
        *_flags(float, elastic_timeout="seconds to wait for enough ranks (default: 600)"),
        Flag(
            ("--blacklist-cooldown-range",),
            "seconds that a host is not used after a failure (default: 1 60)",
            int,
            count=2,
        ),
    ],
    "hosts": [
        Flag(("-p", "--ssh-port"), "sshd's port on the other hosts", int),
        Flag(("-i", "--ssh-identity-file"), "the private key for the other hosts", str),
        Flag(
            ("--sync",), "first copy this folder to the other hosts, by rsync, without the files that .gitignore names"
        ),
        Flag(("--network-interface", "--network-interfaces"), "eth0,… the interfaces that may connect the hosts", str),
    ],
    "output": [
        Flag(("--output-dir", "--output-filename"), "also write rank.N/stdout and rank.N/stderr in this folder", str),
        Flag(("-prefix-timestamp", "--prefix-output-with-timestamp"), "begin each line with the time"),
        Flag(("--log-level",), "level of the runtime's messages", str, choices=LEVELS),
        *_pair(
            "--log-without-timestamp",
            "--log-with-timestamp",
            "log_without_timestamp",
            "no time in the runtime's messages",
        ),
        Flag(("--verbose",), "print what is started, and how"),
    ],
    "faults": [
        Flag(
            ("--chaos",),
            "seed=7,kills=20,… make ranks fail on purpose: kills, stops, delays, cuts, states=…, at=…",
            str,
        )
    ],
    "tuning": [
        *_flags(float, fusion_threshold_mb="tensors are packed together up to this size; 0: no fusion"),
        *_flags(float, cycle_time_ms="how long an announcement waits if more gradients are expected"),
        *_flags(int, cache_capacity="names whose negotiation is remembered; 0: none"),
        *_switches(hierarchical_allreduce="reduce within hosts first", hierarchical_allgather="gather likewise"),
        *_switches(torus_allreduce="reduce along rows and columns of ranks"),
        Flag(("--autotune",), "find threshold, cycle time, buckets and levels while training"),
        *_flags(str, autotune_log_file="write autotune's trials to this file, as CSV"),
        *_flags(int, autotune_warmup_samples="samples to forget", autotune_steps_per_sample="steps in a sample"),
        *_flags(int, autotune_bayes_opt_max_samples="number of samples until it stops"),
        *_flags(float, autotune_gaussian_process_noise="noise of the samples, 0 to 1"),
    ],
    "timeline": [
        *_flags(str, timeline_filename="trace of all tensors, for chrome://tracing"),
        *_switches(timeline_mark_cycles="mark the engine's rounds in the timeline"),
    ],
    "stall check": [
        *_pair(
            "--no-stall-check",
            "--stall-check",
            "no_stall_check",
            "do not report tensors that some ranks have not submitted",
        ),
        *_flags(float, stall_check_warning_time_seconds="report after this many seconds"),
        *_flags(float, stall_check_shutdown_time_seconds="end the job after this many seconds; 0: never"),
    ],
    "library": [
        *_flags(int, num_nccl_streams="streams on each GPU", gloo_timeout_seconds="deadline of Gloo's transfers"),
        *_switches(mpi_threads_disable="initialise MPI for one thread"),
    ],
    "accepted for compatibility with horovodrun": [
        *_flags(bool, True, disable_cache="start-up checks are not cached", jsrun="for LSF", tcp="for Spectrum MPI"),
        *_flags(str, True, thread_affinity="a rank's threads share the cores of --bind"),
    ],
}
FLAGS = [flag for flags in GROUPS.values() for flag in flags]

# Sections of a YAML file → what stands before a key's name in the option's.
_SECTIONS = {
    "params": "",
    "autotune": "autotune_",
    "timeline": "timeline_",
    "stall_check": "stall_check_",
    "library_options": "",
    "logging": "log_",
}


_OFTEN = {
    *("num_proc", "hosts", "hostfile", "gpus", "bind", "as_horovod", "as_ddp", "watch", "report", "check", "mpi"),
    *("gloo", "min_num_proc", "max_num_proc", "host_discovery_script"),
    *("sync", "ssh_port", "ssh_identity_file", "network_interfaces"),
    *("output_filename", "verbose", "timeline_filename", "autotune", "chaos"),
}
"""What ``--help`` shows."""


def add_to(parser: argparse.ArgumentParser, all_shown: bool = False) -> None:
    """Add all options, and the command.

    Args:
        all_shown: has each a line in the help?
    """
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            flag.add_to(group, all_shown or flag.target in _OFTEN)
    parser.add_argument(
        "--config-file",
        metavar="FILE",
        help="options as YAML, as for horovodrun; options on the command line have priority",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs: python train.py …")


def apply_file(args: argparse.Namespace, path: str) -> None:
    """Set what was not typed from a YAML file.

    Raises:
        LaunchError: the file cannot be read, or something in it is unknown or of the wrong type.
    """
    for name, value in _options(path, _load(path)):
        flag = next((flag for flag in FLAGS if flag.target == name and flag.const is True), None)
        if flag is None:
            raise LaunchError(f"{path}: there is no option {name!r}.")
        if getattr(args, name) is None:
            setattr(args, name, _convert(path, flag, value))


def _load(path: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise LaunchError("--config-file needs PyYAML: pip install pyyaml") from None
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise LaunchError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise LaunchError(f"{path} holds no sections such as `params:`.")
    return found


def _options(path: str, content: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Names and values of options, from what a file holds."""
    for section, values in content.items():
        if section in _SECTIONS and not isinstance(values or {}, dict):
            raise LaunchError(f"{path}: {section}: {values!r} is no list of options such as `name: value`.")
        if section == "controller":
            yield str(values).lower(), True
        elif section not in _SECTIONS:
            yield section, values
        for name, value in (values or {}).items() if section in _SECTIONS else ():
            match section, name:
                case "autotune", "enabled":
                    yield "autotune", value
                case "stall_check", "enabled":
                    yield "no_stall_check", not value
                case "logging", "hide_timestamp" | "without_timestamp":
                    yield "log_without_timestamp", value
                case "logging", "with_timestamp":
                    yield "log_without_timestamp", not value
                case _:
                    yield _SECTIONS[section] + name, value


def _convert(path: str, flag: Flag, value: Any) -> Any:
    wrong = isinstance(value, bool) != (flag.kind is bool)
    try:
        found = value if wrong else flag.kind(value)
    except (TypeError, ValueError):
        wrong = True
    if wrong or (flag.choices and found not in flag.choices):
        wanted = " or ".join(flag.choices) if flag.choices else flag.kind.__name__
        raise LaunchError(f"{path}: {flag.target}: {value!r} is not {wanted}.")
    return found


def variables(args: argparse.Namespace) -> dict[str, Any]:
    """The options that become variables of the ranks, see :data:`workbench.cli.flags.VARIABLES`."""
    found = {name: getattr(args, name) for name in VARIABLES}
    if args.binding_args is not None and args.bind is None:
        found["bind"] = "none"  # whoever tells mpiexec how to bind wants nobody else to
    return found


def warnings(args: argparse.Namespace) -> list[str]:
    """One line for each option that was given and changes nothing."""
    lines = []
    for flag in FLAGS:
        value = getattr(args, flag.target)
        if value is None or (flag.kind is bool and value != flag.const):
            continue
        if flag.idle:
            lines.append(f"{flag.names[-1]} has no effect here: {flag.help}.")
        elif flag.target in VARIABLES and not has_effect(flag.target):
            lines.append(f"{flag.names[-1]} sets {VARIABLES[flag.target][0]}, which is not used here yet.")
    if args.gloo and binding_words(args):
        lines.append("--binding-args has no effect here: without mpiexec there is --bind.")
    return lines


def is_elastic(args: argparse.Namespace) -> bool:
    """Does the job's number of ranks change while it runs?"""
    return any(getattr(args, name) is not None for name in ("min_num_proc", "max_num_proc", "host_discovery_script"))


def command(args: argparse.Namespace) -> list[str]:
    """The command, without the ``--`` that may stand before it."""
    words: list[str] = args.command
    return words[1:] if words[:1] == ["--"] else words


def mpi_words(args: argparse.Namespace) -> list[str]:
    """The words of ``--mpi-args`` and ``--binding-args``.

    Raises:
        LaunchError: a quote in it has no end.
    """
    return _split("--mpi-args", args.mpi_args) + binding_words(args)


def binding_words(args: argparse.Namespace) -> list[str]:
    """The words of ``--binding-args``; none if they bind to nothing, which no mpiexec here needs to be told."""
    words = _split("--binding-args", args.binding_args)
    to = dict(zip((word.lstrip("-") for word in words), words[1:], strict=False)).get("bind-to")
    return [] if to == "none" else words


def _split(name: str, text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise LaunchError(f"{name} {text!r} cannot be split into words: {error}.") from None


def with_flags(env: Mapping[str, str], flags: Mapping[str, str | float | None]) -> dict[str, str]:
    """``env`` with the variables that flags of ``workbench run`` set; a flag that is None was not given.

    A flag wins over both names of its variable, ``HOROVOD_*`` and ``WORKBENCH_*``.

    Example:
        >>> with_flags({"WORKBENCH_CACHE_CAPACITY": "7"}, {"cache_capacity": 8, "autotune": True, "log_level": None})
        {'HOROVOD_CACHE_CAPACITY': '8', 'HOROVOD_AUTOTUNE': '1'}
    """
    found = {
        VARIABLES[flag][0]: _render(value, VARIABLES[flag][1]) for flag, value in flags.items() if value is not None
    }
    names = {field: {name} for field, (name, _) in HOROVOD_NAMES.items()}
    names["stall_warning_s"].add("HOROVOD_STALL_CHECK_DISABLE")
    hidden = {f"WORKBENCH_{field.upper()}" for field, others in names.items() if others & found.keys()}
    return {name: text for name, text in env.items() if name not in hidden} | found


def has_effect(flag: str) -> bool:
    """Does anything here read the variable that this flag sets?"""
    elsewhere = ("HOROVOD_START_TIMEOUT", "HOROVOD_STALL_CHECK_DISABLE", "WORKBENCH_BIND")
    return VARIABLES[flag][0] in {*elsewhere, *(name for name, _ in HOROVOD_NAMES.values())}


def _render(value: str | float, factor: float) -> str:
    if isinstance(value, str):
        return value
    number = float(value * factor)
    return str(int(number)) if number.is_integer() else str(number)
