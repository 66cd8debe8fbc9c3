"""The image of ``deploy/container``: built here, its workers and launcher on hosts of the test bed."""

from __future__ import annotations

import contextlib
import faulthandler
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import slurm
from containers import Engine, built
from hosts import Hosts
from namespaces import CannotMakeHosts
from test_launchers import RIGHT, SCRIPT, SHORT_ADDRESSES
from test_run_in_slurm import lines

from workbench.launch.hosts.facts import code_hash

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
KEYS = "/etc/workbench/ssh"
PORT = 2222

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),  # the first test builds the image
]


@pytest.fixture(scope="module")
def image() -> Iterator[Engine]:
    """The CPU variant, with all that it has by default, on the Debian that the Dockerfile names."""
    with built(ROOT) as engine:
        yield engine


class Containers:
    """Containers on three hosts of the test bed, each in the network of one."""

    def __init__(self, image: Engine, hosts: Hosts, folder: Path) -> None:
        self._image, self.hosts, self._folder = image, hosts, folder
        self._started: list[subprocess.Popen[bytes]] = []

    def key(self, name: str) -> Path:
        """A new key pair of a job, in a folder that is readable for the image's user."""
        folder = self._folder / name
        folder.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, 1000, 1000)
        return folder

    def words(self, host: int, keys: Path, *command: str) -> list[str]:
        """A command in a container on a host."""
        hosts = self.hosts.folder / self.hosts.names[host] / "hosts"
        options = [f"--network=ns:{self.hosts.folder / self.hosts.names[host]}.net"]
        options += [f"--hostname={self.hosts.names[host]}", f"--volume={hosts}:/etc/hosts:ro"]
        return self._image.words(*command, options=[*options, f"--volume={keys}:{KEYS}:ro"])

    def run(self, host: int, keys: Path, *command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """… to its end."""
        words = self.words(host, keys, *command)
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s)

    def start(self, host: int, keys: Path, *command: str, port: int = PORT) -> Path:
        """… until it listens on a port; gives the file with what it says."""
        log = self._folder / f"{len(self._started)}.log"
        with log.open("wb") as file:
            words = self.words(host, keys, *command)
            self._started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file))
        until = time.monotonic() + 60.0
        while f":{port} " not in self.hosts.run(host, "ss", "-Hltn").stdout:
            assert self._started[-1].poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        return log

    def stop(self) -> None:
        """End all that were started, as their engine would: by a signal to their first process."""
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(timeout=30.0)


@pytest.fixture
def containers(image: Engine, tmp_path: Path) -> Iterator[Containers]:
    """On hosts wb1, wb2 and wb3."""
    with contextlib.ExitStack() as stack:
        hosts = Hosts(3)
        try:
            stack.enter_context(hosts)
        except CannotMakeHosts as reason:
            pytest.skip(str(reason))
        made = Containers(image, hosts, tmp_path)
        stack.callback(made.stop)
        yield made


def commands(network: Path) -> list[list[str]]:
    """What runs in the network of a host, but for the test bed's own sshd."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            if Path(f"/proc/{process.pid}/ns/net").stat().st_ino == network.stat().st_ino and "-E" not in words:
                found.append(words)
    return found


# --- what is in it --------------------------------------------------------------------------------------


def test_its_user_is_not_root_and_it_holds_no_key(image: Engine) -> None:
    """No host key, no key of a user, and nothing of the index that it was built from."""
    assert image.run("id", "-u").stdout == "1000\n"
    named = "-name 'ssh_host_*' -o -name id_rsa -o -name id_ed25519 -o -name uv -o -name report.json"
    script = f"find / -xdev -type f '(' {named} -o -name pip.conf -size +0 ')'; env | grep -i -e pip_ -e index"
    done = image.run("sh", "-c", script, options=("--network=none", "--user=0"))
    assert (done.stdout, done.stderr) == ("", "")


VERSIONS = """
import re
from importlib.metadata import distributions
for each in distributions():
    print(re.sub("[-_.]+", "-", each.name).lower(), each.version, sep="==")
"""


def test_its_packages_are_those_of_the_lock(image: Engine) -> None:
    """Each installed package has a version that requirements.lock names; only the set-up's own have none there."""
    done = image.run("python", "-c", VERSIONS)
    lock = set(re.findall(r"^([\w.-]+==[^\s;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    found = {re.sub(r"\+\w+$", "", line) for line in done.stdout.split()}  # torch's build
    assert len(found) > 50, done.stderr
    left = {each for each in found - lock if not each.startswith(("pip==", "data-parallel-workbench=="))}
    assert {each for each in left if not each.startswith("setuptools==")} == set()  # Debian's is in the environment


def test_it_has_all_of_the_code(image: Engine) -> None:
    """``.dockerignore`` keeps back none of it: its hash is that of the checkout, as a rehearsal compares it."""
    hashed = "from workbench.launch.hosts.facts import *; print(code_hash(HOME / 'workbench'))"
    assert image.run("python", "-c", hashed).stdout.strip() == code_hash(ROOT / "workbench")


def test_the_cpu_variant_has_no_cuda(image: Engine) -> None:
    """torch's CUDA builds alone bring more than 2.5 GB along."""
    print(f"the image has {image.size() / 1e9:.2f} GB")
    assert image.size() < 2.5e9


def test_a_worker_without_a_key_says_what_to_do(image: Engine) -> None:
    """It ends at once, and tells how to make one."""
    done = image.run("worker")
    assert done.returncode == 1
    assert "mounted at /etc/workbench/ssh. To make one: mkdir keys && ssh-keygen" in done.stderr


def test_a_key_that_cannot_be_used_is_named(image: Engine, tmp_path: Path) -> None:
    """One that the image's user may not read, and one that is none."""
    for name, mode, said in (("locked", 0o600, "cannot be read by user 1000"), ("no_key", 0o644, "is no private key")):
        folder = tmp_path / name
        folder.mkdir(0o755)
        (folder / "id").write_text("no key\n")
        (folder / "id").chmod(mode)
        done = image.run("worker", options=("--network=none", f"--volume={folder}:{KEYS}:ro"))
        assert (done.returncode, f"{KEYS}/id {said}" in done.stderr) == (1, True), done.stderr


# --- on hosts -------------------------------------------------------------------------------------------


def test_two_workers_and_a_launcher(containers: Containers) -> None:
    """Four ranks in two containers, by TCP and by MPI: right sums, and nothing is left."""
    keys = containers.key("keys")
    logs = [containers.start(host, keys, "worker") for host in (0, 1)]
    assert [re.findall(r"listening on (\S+) port (\d+)", log.read_text()) for log in logs] == [
        [(f"10.77.0.{n}", str(PORT))] for n in (1, 2)
    ]
    for way in ([], ["--mpi"]):
        begun = time.monotonic()
        done = containers.run(2, keys, "workbench", "run", "-H", "wb1:2,wb2:2", *way, "python", "-c", SCRIPT)
        assert (done.returncode, lines(done.stdout)) == (0, RIGHT), done.stdout + done.stderr
        print(f"4 ranks {' '.join(way)}: {time.monotonic() - begun:.1f} s with the launcher's container")
        for name in ("wb1", "wb2"):  # MPICH's proxy keeps a file, which stays where mpiexec is ended before it
            left = containers.run(2, keys, "ssh", name, "find /tmp /dev/shm -mindepth 1").stdout.split()
            assert [path for path in left if not (way and path.startswith("/tmp/hydra_hwloc_xmlfile_"))] == []
    for name in ("wb1", "wb2"):
        running = commands(containers.hosts.folder / f"{name}.net")
        assert sorted(words[0] for words in running) == ["sshd:", "tini"], running


def test_a_worker_of_another_job_is_refused(containers: Containers) -> None:
    """Its host key is signed by another key: neither side lets the other in, and the launcher names the host."""
    mine, theirs = containers.key("mine"), containers.key("theirs")
    containers.start(0, mine, "worker")
    containers.start(1, theirs, "worker")
    done = containers.run(2, mine, "workbench", "run", "-H", "wb1:1,wb2:1", "true")
    assert done.returncode == 1, done.stdout
    assert "wb2: its host key is not known here" in done.stderr
    assert "wb1:" not in done.stderr
    trusting = ["ssh", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "wb2", "true"]
    assert "Permission denied (publickey)" in containers.run(2, mine, *trusting).stderr


def test_jupyterlab_asks_for_its_token(containers: Containers) -> None:
    """It answers from another host, and only those who know the token."""
    keys = containers.key("keys")
    containers.start(0, keys, "lab", "--IdentityProvider.token=such-a-word", port=8888)
    ask = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
    address = "http://wb1:8888/api/contents/notebooks"
    done = containers.run(2, keys, "python", "-c", ask, address)
    assert "HTTP Error 403" in done.stderr, done.stdout
    done = containers.run(2, keys, "python", "-c", ask, f"{address}?token=such-a-word")
    assert "00_quickstart.ipynb" in done.stdout, done.stderr


# --- Apptainer's definition -----------------------------------------------------------------------------

# What Apptainer does with a definition and an image, and what of the host it shows inside.
INSIDE = """
: >>"$0/etc/hosts"
for path in dev proc sys tmp etc/hosts; do mount --rbind /$path "$0/$path"; done
exec chroot "$0" env "$@"
"""


def test_the_definition_under_slurm(image: Engine) -> None:
    """Its sections, run by hand on the same Debian, make an image whose ranks srun starts, by MPI and without it."""
    found = re.split(r"^%(\w+)\n", (FOLDER / "workbench.def").read_text(), flags=re.MULTILINE)
    sections = dict(zip(found[1::2], found[2::2], strict=True))
    values = dict(line.split("=") for line in sections["arguments"].split())
    post = re.sub(r"{{ (\w+) }}", lambda name: values[name[1]], sections["post"])
    files = [" ".join(line.split()) for line in sections["files"].splitlines() if line.strip()]
    faulthandler.cancel_dump_traceback_later()
    with contextlib.ExitStack() as stack:
        container = stack.enter_context(image.working_container(*files))
        container.run(post, {"TORCH_BACKEND": "auto"})
        container.run(sections["environment"] + sections["test"], {})
        tree = container.mounted()
        try:
            hosts = stack.enter_context(Hosts(2))
            slurm.start(hosts)
        except CannotMakeHosts as reason:
            pytest.skip(str(reason))
        exports = [line.split()[1] for line in sections["environment"].splitlines() if "export" in line]
        env = [each.replace("$PATH", "/usr/bin:/bin") for each in exports]
        for mpi in ("pmi2", "none"):
            srun = ["srun", "-N2", "--ntasks-per-node=2", f"--mpi={mpi}", "unshare", "--mount", "sh", "-ec", INSIDE]
            words = [*srun, str(tree), *env, *(f"{n}={v}" for n, v in SHORT_ADDRESSES.items()), "python", "-c", SCRIPT]
            done = hosts.run(0, *words)
            assert (done.returncode, sorted(done.stdout.splitlines())) == (0, RIGHT), done.stdout + done.stderr
