"""``workbench k8s``: manifests of a job for Kubernetes, and values for the chart."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from workbench.cli import flags
from workbench.cli.jobs.description import JobDescription
from workbench.errors import LaunchError
from workbench.launch.as_command import write_named

_TEXT = """\
Writes a job for an operator of Kubernetes, or values for the chart deploy/kubernetes/workbench:

  mpijob        Kubeflow's MPI operator; fixed or elastic
  trainjob      Kubeflow's Trainer, by its runtime torch-distributed
  jobset        JobSet, with torchrun in each pod
  helm-values   helm install NAME deploy/kubernetes/workbench -f FILE; fixed or elastic

Build the image from deploy/container. Nothing is sent to a cluster: kubectl apply -f FILE does that."""
_EXAMPLES = """\
examples:
  workbench k8s mpijob --np 4 --gpus 1 --image registry.example/workbench:1 -- python train.py | kubectl apply -f -
  workbench k8s jobset --np 8 --slots 4 --image registry.example/workbench:1 --output job.yaml -- python train.py"""
KINDS = ("mpijob", "trainjob", "jobset", "helm-values")
"""Those of :data:`workbench.cli.jobs.forms.MANIFESTS`, which is loaded when one is written."""

_NUMBERS = {
    "slots": (1, "ranks of each pod"),
    "gpus": (0, "GPUs of each rank"),
    "cpus": (1, "cores of each rank"),
    "min-np": (0, "elastic: the least number of ranks"),
    "max-np": (0, "elastic: the largest number of ranks"),
}
_WORDS = {
    "name": ("workbench", "name of the job, and of its pods"),
    "image": ("", "image of the containers, with a tag or digest"),
    "memory": ("2Gi", "of each rank"),
    "time": ("", "time limit of the job: 30:00 is half an hour"),
    "queue": ("", "of Kueue"),
    "priority": ("", "a PriorityClass"),
    "namespace": ("", "namespace (default: that of kubectl)"),
    "shm-size": (
        "",
        "size of a worker's /dev/shm, a part of its memory (default: 1Gi, or all its memory if that is less)",
    ),
    "ssh-secret": ("", "for helm-values: a Secret with the job's private key (default: the chart creates one)"),
}

_PAIRS = {
    "env": "a variable of the ranks",
    "node-selector": "a label that nodes of the pods must have",
    "annotation": "of the workers' pods",
}
_LISTS = {
    "toleration": ("KEY=VALUE:EFFECT", "of a taint; KEY:EFFECT or KEY for any value"),
    "volume": ("CLAIM:PATH", "of all pods; also configmap/NAME:PATH, secret/NAME:PATH, and :ro at the end"),
    "pull-secret": ("NAME", "a Secret for pulling the image"),
}


def add(commands: Any) -> None:
    """Add the subcommand to the parser's."""
    k8s = commands.add_parser(
        "k8s",
        help="write a job for Kubernetes",
        description=_TEXT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        usage="workbench k8s KIND --np N --image IMAGE [options] -- COMMAND …",
    )
    kinds = k8s.add_subparsers(title="kinds", metavar="KIND", required=True)
    for kind in KINDS:
        usage = f"workbench k8s {kind} --np N --image IMAGE [options] -- COMMAND …"
        _add_options(kinds.add_parser(kind, usage=usage, allow_abbrev=False))
        kinds.choices[kind].set_defaults(handle=handle, kind=kind)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "-np", "--np", type=int, default=1, metavar="N", help="how many ranks")
    for name, (number, text) in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=number, metavar="N", help=f"{text} (default: {number})")
    for name, (word, text) in _WORDS.items():
        parser.add_argument(f"--{name}", default=word, metavar="TEXT", help=text)
    parser.add_argument("--ttl", type=int, metavar="SECONDS", help="delete the job this long after its end")
    for name, text in _PAIRS.items():
        parser.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME=TEXT", help=f"{text}; may be repeated"
        )
    for name, (form, text) in _LISTS.items():
        parser.add_argument(f"--{name}", action="append", default=[], metavar=form, help=f"{text}; may be repeated")
    parser.add_argument(
        "--output", metavar="FILE", help="write to this file, and replace it if it exists (default: print)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each rank runs: -- python train.py …")


def handle(args: argparse.Namespace) -> int:
    """Write what was asked for.

    Raises:
        LaunchError: the job is described wrongly, or the file cannot be written.
    """
    from workbench.cli.jobs.forms import MANIFESTS, as_yaml

    text = as_yaml(MANIFESTS[args.kind](described(args)))
    if not args.output:
        sys.stdout.write(text)
        return 0
    write_named(Path(args.output), text.encode())
    return 0


def described(args: argparse.Namespace) -> JobDescription:
    """The job that the options describe.

    Raises:
        LaunchError: there is no command, a variable has no value, or as :class:`JobDescription`.
    """
    command = flags.command(args)
    if not command or (args.command[0] != "--" and command[0].startswith("-")):
        raise LaunchError("First options, then a command: workbench k8s mpijob --np 4 --image IMAGE -- python train.py")
    names = [name.replace("-", "_") for name in ("np", *_NUMBERS, *_WORDS, "ttl")]
    given = {name: getattr(args, name) for name in names}
    env, selector, annotations = (_pairs(name, getattr(args, name.replace("-", "_"))) for name in _PAIRS)
    return JobDescription(
        command,
        env=env,
        node_selector=selector,
        annotations=annotations,
        tolerations=args.toleration,
        volumes=args.volume,
        pull_secrets=args.pull_secret,
        **given,
    )


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    if wrong := [each for each in texts if "=" not in each]:
        what = "a variable" if option == "env" else "it"
        raise LaunchError(f"--{option} {wrong[0]}: {what} has a value: {wrong[0]}=text.")
    return dict(each.split("=", 1) for each in texts)
