"""``workbench explain``, ``version``, ``env`` and ``completion``: what the command says about itself and its errors."""

from __future__ import annotations

import argparse
import difflib
import json
import platform
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from workbench._version import __version__
from workbench.cli.completion import script
from workbench.cli.face import Parser, bold
from workbench.diagnostics.explain import explanation, names
from workbench.errors import LaunchError

_PACKAGES = (
    *("numpy", "mpi4py", "mpich", "ipyparallel", "ipykernel", "jupyterlab"),
    *("torch", "tensorflow", "tensorflow-cpu", "keras", "jax", "mxnet", "cupy-cuda12x", "cupy-cuda13x"),
    *("pyspark", "ray"),
)


def add(commands: Any, parser: Callable[[], Parser]) -> None:
    """Add the four commands; ``parser`` makes the one that completion is for."""
    explain = commands.add_parser(
        "explain",
        help="what an error means, its usual causes, and what to do",
        description="Prints the page of an error class, without a network. Without a name it lists all classes.",
    )
    explain.add_argument("name", nargs="?", default="", metavar="ERROR", help="such as MissingRanksError")
    explain.set_defaults(handle=_explain)
    about = commands.add_parser(
        "version",
        help="the versions of the installed packages, for a report",
        description="Nothing is imported for it.",
    )
    about.add_argument("--json", action="store_true", help="as JSON")
    about.set_defaults(handle=_version)
    env = commands.add_parser(
        "env",
        help="lines that make a shell ready for `mpirun … python` and `horovodrun`",
        description='eval "$(workbench env)" in a shell or a batch script: then `mpirun`, `python` and `horovodrun` '
        "are those of this installation, and scripts that import Horovod find the workbench.",
    )
    env.set_defaults(handle=_env)
    completion = commands.add_parser(
        "completion",
        help="lines that complete commands and options in your shell",
        description='For bash: eval "$(workbench completion bash)" in ~/.bashrc; for zsh likewise, after compinit; for '
        "fish: workbench completion fish > ~/.config/fish/completions/workbench.fish",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(handle=lambda args: _show(script(args.shell, parser().commands())))


def overview(parser: Parser) -> int:
    """The command alone, without another word: all commands, and the exit code of a mistyped line."""
    parser.print_help(sys.stderr)
    return 2


def _explain(args: argparse.Namespace) -> int:
    known = names()
    if not args.name:
        return _show("\n".join(f"{name:<24} {says}" for name, says in known.items()))
    found = next((name for name in known if name.lower() == args.name.lower()), None)
    if found is None:
        near = difflib.get_close_matches(args.name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else "`workbench explain` lists all."
        raise LaunchError(f"There is no error {args.name!r} here. {hint}")
    lines = explanation(found).splitlines()
    return _show("\n".join(bold(line.lstrip("# ")) if line.startswith("#") else line for line in lines))


def versions() -> dict[str, str]:
    """What is installed, by the packages' own records.

    Example:
        >>> {"workbench", "python", "numpy"} <= versions().keys()
        True
    """
    found = {"workbench": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _version(args: argparse.Namespace) -> int:
    found = versions()
    return _show(json.dumps(found, indent=1) if args.json else "\n".join(f"{k:<14} {v}" for k, v in found.items()))


def _env(args: argparse.Namespace) -> int:
    from workbench.launch.start.starters import horovod_shell

    return _show("\n".join(f"export {name}={shlex.quote(value)}" for name, value in horovod_shell().items()))


def _show(text: str) -> int:
    print(text)
    return 0
