"""Container images for tests, built and run without an engine: by buildah and podman, in a folder that goes again.

No registry is asked. The base image is a Debian that mmdebstrap makes; packages come from Debian's mirror, and from the
package index that pip is told of here. That, and a certificate, are lent to a build by mounts: the image does not know.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

TOOLS = ("buildah", "podman", "mmdebstrap", "unshare")
BASE, IMAGE = "localhost/base", "localhost/workbench"
_RUN = (
    "--cgroups=disabled",
    "--ulimit=nofile=4096:4096",
    "--ulimit=nproc=4096:4096",
    "--rm",
    "--pull=never",
    "--shm-size=1g",
)
# podman takes a machine for one with cgroup v1 unless this is all of v2.
_CGROUP2 = 'mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec "$@"'
_LENT = Path("/run/lent")


class CannotBuild(Exception):  # noqa: N818 - no error of the tests, but the reason why some are skipped
    """Images cannot be built on this machine; the text says what is missing."""


class Engine:
    """A storage of images, and what runs from it. ``with`` removes all of it at the end.

    Args:
        checkout: the context of builds.

    Raises:
        CannotBuild: on entering.
    """

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self.folder = Path(tempfile.gettempdir()) / f"workbench-images-{os.getpid()}"
        self._storage = [f"--root={self.folder / 'root'}", f"--runroot={self.folder / 'run'}"]
        self._storage += ["--storage-driver=overlay"]

    def __enter__(self) -> Engine:
        if sys.platform != "linux" or os.geteuid():
            raise CannotBuild("images need Linux and root")
        if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
            raise CannotBuild(f"images need the packages {', '.join(missing)}")
        if (free := shutil.disk_usage(tempfile.gettempdir()).free) < 12 << 30:
            raise CannotBuild(f"images need 12 GiB in {tempfile.gettempdir()}, and {free >> 30} are free")
        self.folder.mkdir(mode=0o700)
        return self

    def __exit__(self, *error: object) -> None:
        for command in (["podman", *self._storage, "rm", "--all", "--force", "--time=1"], self._buildah("rm", "--all")):
            subprocess.run(_with_cgroup2(command), capture_output=True, timeout=60.0)
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for path in sorted((each for each in mounted if each.startswith(str(self.folder))), reverse=True):
            subprocess.run(["umount", "--lazy", path], capture_output=True)
        shutil.rmtree(self.folder)

    def make_base(self, suite: str) -> None:
        """The smallest Debian that has apt, as image ``localhost/base``.

        Raises:
            CannotBuild: the mirror is not reached.
        """
        tree = self.folder / "base.tar"
        made = _run(["mmdebstrap", "--quiet", "--variant=minbase", suite, str(tree)], 300.0)
        if made.returncode:
            raise CannotBuild(f"no Debian to build on: {' '.join(made.stderr.split())[-300:]}")
        container = _check(self._buildah("from", "scratch"))
        _check(self._buildah("add", "--quiet", container, str(tree), "/"))
        _check(self._buildah("commit", "--quiet", "--rm", container, BASE))
        tree.unlink()

    def build(self, dockerfile: Path, **arguments: str) -> None:
        """Build ``localhost/workbench``, on the base."""
        words = [f"--build-arg={name}={text}" for name, text in {"BASE": BASE, **arguments}.items()]
        words += ["--pull-never", "--isolation=chroot", f"--tag={IMAGE}", f"--file={dockerfile}"]
        _check(self._buildah("bud", *words, *self._lend(), str(self._checkout)), 900.0)

    @contextlib.contextmanager
    def working_container(self, *paths: str) -> Iterator[WorkingContainer]:
        """A container on the base in which commands change files, with paths of the checkout copied to where they say.

        Args:
            paths: ``"from to"``.
        """
        name = _check(self._buildah("from", "--pull-never", BASE))
        try:
            for each in paths:
                source, place = each.split()
                _check(self._buildah("copy", "--quiet", name, str(self._checkout / source), place))
            yield WorkingContainer(self, name)
        finally:
            _run(self._buildah("rm", name), 60.0)

    def words(self, *command: str, options: Sequence[str] = ()) -> list[str]:
        """A command in a new container of the image, as it is started here; it ends with the command."""
        return _with_cgroup2(["podman", *self._storage, "run", *_RUN, *options, IMAGE, *command])

    def words_in(self, container: str, *command: str) -> list[str]:
        """A command in a container that runs, by its name."""
        return _with_cgroup2(["podman", *self._storage, "exec", container, *command])

    def kill(self, container: str) -> None:
        """End a container, by its name, without a warning; whoever waits for it sees that."""
        _run(_with_cgroup2(["podman", *self._storage, "kill", container]), 60.0)

    def run(self, *command: str, options: Sequence[str] = ("--network=none",)) -> subprocess.CompletedProcess[str]:
        """A command in a new container, to its end."""
        return _run(self.words(*command, options=options), 60.0)

    def size(self) -> int:
        """Bytes of the image."""
        inspect = ["podman", *self._storage, "image", "inspect", "--format={{.Size}}", IMAGE]
        return int(_check(_with_cgroup2(inspect)))

    def _buildah(self, *words: str) -> list[str]:
        return ["buildah", *self._storage, *words]

    def _lend(self) -> list[str]:
        """Mounts with pip's settings of this machine, and the files that they name."""
        settings, mounts = pip_settings(), []
        for name, text in settings.items():
            for path in re.findall(r"(?:^|\s|file://)(/\S+)", text):
                place = _LENT / path.lstrip("/")
                settings[name] = settings[name].replace(path, str(place))
                mounts.append(f"--volume={path}:{place}:ro")
        lines = [f"{name} = {text}\n" for name, text in settings.items()]
        (self.folder / "pip.conf").write_text("".join(["[global]\n", *lines]))
        return [*mounts, f"--volume={self.folder / 'pip.conf'}:/root/.config/pip/pip.conf:ro"]


@contextlib.contextmanager
def built(checkout: Path, **arguments: str) -> Iterator[Engine]:
    """The CPU variant of ``deploy/container``, on the Debian that its Dockerfile names; skips where it cannot be built.

    Args:
        checkout: with the Dockerfile and all that it copies.
        arguments: of the build.
    """
    dockerfile = checkout / "deploy" / "container" / "Dockerfile"
    suite = re.search(r"^ARG BASE=debian:(\w+)-slim$", dockerfile.read_text(), re.MULTILINE)
    assert suite
    faulthandler.cancel_dump_traceback_later()  # each step has a deadline; the stacks of who waits say nothing
    try:
        with Engine(checkout) as engine:
            engine.make_base(suite[1])
            engine.build(dockerfile, TORCH_BACKEND="auto", **arguments)
            yield engine
    except CannotBuild as reason:
        pytest.skip(str(reason))


class WorkingContainer:
    """See :meth:`Engine.working_container`."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name

    def run(self, script: str, env: Mapping[str, str], timeout_s: float = 900.0) -> str:
        """What a shell's script prints, which must succeed."""
        words = [f"--env={name}={text}" for name, text in env.items()]
        lend = self._engine._lend()
        command = self._engine._buildah("run", "--isolation=chroot", *words, *lend, self._name, "sh", "-ec", script)
        return _check(command, timeout_s)

    def mounted(self) -> Path:
        """The root of its files, while it is there."""
        return Path(_check(self._engine._buildah("mount", self._name)))


def pip_settings() -> dict[str, str]:
    """Where pip finds packages here, by its environment variables and files."""
    said = _check([sys.executable, "-m", "pip", "config", "list"])
    found = re.findall(r"^(:env:|global)\.(cert|find-links|index-url|trusted-host)='(.*)'$", said, re.MULTILINE)
    return {name: text for kind, name, text in sorted(found, reverse=True)}  # of two, the environment's


def _with_cgroup2(command: list[str]) -> list[str]:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return command
    return ["unshare", "--mount", "--propagation=private", "sh", "-ec", _CGROUP2, "sh", *command]


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)


def _check(command: list[str], timeout_s: float = 60.0) -> str:
    done = _run(command, timeout_s)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout.strip()
