"""``workbench class up`` and ``down``."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from errno import EISDIR, ENAMETOOLONG, ENOTDIR
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any
from unicodedata import normalize

import psutil

from workbench.cli.class_server import limits
from workbench.cli.class_server.place import Place
from workbench.cli.grade.results import clean
from workbench.common.extras import has
from workbench.common.whole_file import write_whole
from workbench.config import child_environment
from workbench.errors import LaunchError
from workbench.launch.start.starters import free_port
from workbench.runtime.control.addresses import addresses

NEEDS = ("jupyterhub==6.1.1", "configurable-http-proxy==0.4.0", "jupyterhub-idle-culler==2.0.0", "segno==1.6.6")
LEARNER_BYTES = 600 << 20
"""Of memory, with engines that have imported torch."""
_WORDS = (
    "amber birch cedar coral dune elm fern fjord grove heron iris jade larch maple olive otter pine reed stone tide"
)
_PLAIN = str.maketrans(dict(zip("äöüßøł _.", ("ae", "oe", "ue", "ss", "o", "l", "-", "-", "-"), strict=True)))
_BEGIN_S, _END_S, _COLLECT_S, _MOST_FILES = 90.0, 30.0, 120.0, 20_000
_MOST_PATH = 49  # of a home: a socket's name has 103 bytes, of which Jupyter takes 49, and .run/ 5


def up(place: Place, names: Sequence[str], tokens: bool = False) -> list[str]:
    """Begin a class, or go on with one whose hub has ended; what to tell, line by line.

    A class that goes on does so as it was begun: of what is wanted only new learners, host and port count.

    Args:
        place: what is wanted; ``names`` come into it.
        names: of the learners.
        tokens: has each a token of its own, in place of the class's password? So it is in any case where learners are
            kept apart and no password was chosen.

    Raises:
        LaunchError: something is in the way; nothing has been begun then.
    """
    if not has("jupyterlab"):
        raise LaunchError("`workbench class up` needs jupyterlab in this Python environment.")
    there = _old(place.folder)
    called = {} if there is not None and there.learners and not names else _checked(names)
    new = [name for name in called if there is None or name not in there.learners]
    chosen = bool(place.password)
    place = _as_begun(there, place, new) if there is not None else _wanted(place)
    place.learners += new
    if bool(there.tokens) if there is not None else tokens or (place.apart and not chosen):
        place.tokens = {name: place.tokens.get(name) or _secret() for name in place.learners}
    _refuse(place, new)
    if there is not None:
        if (running := there.process()) is not None:
            running.kill()  # not ended in order: so the learners' servers go on
            running.wait(_END_S)
        _end(there)  # what the hub has left
    _free(place)
    place.folder.mkdir(parents=True, exist_ok=True)
    place.folder.chmod(0o711)  # learners reach their own folders, and list no others
    place.hub.mkdir(mode=0o700, exist_ok=True)
    place.write()
    environment = _environment(place)
    if place.tokens:
        lines = "".join(f"{name},{token}\n" for name, token in place.tokens.items())
        place.tokens_file.touch(mode=0o600)
        write_whole(place.tokens_file, lines.encode())
    _ready(place, new)
    _begin(place, environment)
    return [
        f"A class for {len(place.learners)} at {place.address}",
        *(f"{given} signs in as {plain}" for plain, given in called.items() if plain != given),
        f"names: {_listed(place.learners)}; "
        + (f"each has a token, in {place.tokens_file}" if place.tokens else f"password: {place.password}"),
        *_code(place, environment),
        limits.kept(place),
        *_warnings(place),
        f"workbench class down {shlex.quote(str(place.folder))} ends it, and collects the work.",
    ]


def _wanted(place: Place) -> Place:
    """A new class, with what was not said."""
    folder, ours = place.folder, {"collected"}
    if (folder / "env" / "ready").exists():
        ours.add("env")  # of an earlier class
    if folder.exists() and {each.name for each in folder.iterdir()} - ours:
        raise LaunchError(f"{folder} is not empty, and has no class in it: name a new folder.")
    return replace(
        place,
        apart=os.geteuid() == 0 and place.slurm is None,
        host=place.host or addresses()[0],
        port=place.port or 8000,
        password=place.password or _secret(),
        inner=[free_port(), free_port()],
    )


def _as_begun(there: Place, wanted: Place, new: Sequence[str]) -> Place:
    """The class of before, at the address that is wanted now."""
    if there.process() is not None and not new:
        raise LaunchError(f"A class runs in {there.folder}, at {there.address}. End it: workbench class down.")
    if there.apart != (os.geteuid() == 0 and there.slurm is None):
        raise LaunchError(f"Root began this class, or {there.folder} is another user's: go on as who began it.")
    return replace(there, host=wanted.host or there.host, port=wanted.port or there.port)


def _refuse(place: Place, new: Sequence[str]) -> None:
    if place.slurm is not None and not shutil.which("sbatch"):
        raise LaunchError("--slurm: there is no sbatch on PATH.")
    if not place.tokens and len(place.password) < 8:
        raise LaunchError("The password of a class has at least 8 characters.")
    for file in filter(None, (place.cert, place.key)):
        if not Path(file).is_file():
            raise LaunchError(f"{file} is not there. --cert and --key are files with a certificate and its key.")
    if bool(place.cert) != bool(place.key):
        raise LaunchError("HTTPS needs both: --cert and --key.")
    if place.apart and (name := limits.taken(new)):
        raise LaunchError(
            f"This machine has a user {limits.user(name)}, of another class: end that one first, or take --names."
        )
    if not 0 < place.port < 65536:
        raise LaunchError(f"--port {place.port}: a port is a number from 1 to 65535.")
    if max(len(str(place.home(name)).encode()) for name in place.learners) > _MOST_PATH:
        most = f"at most {_MOST_PATH} bytes with a learner's name"
        raise LaunchError(f"{place.folder} is too long a path for sockets below it: {most}.")


def _warnings(place: Place) -> Iterator[str]:
    carried = psutil.virtual_memory().available // LEARNER_BYTES
    if carried < len(place.learners):
        yield f"This machine has memory for about {carried}."
    if place.apart and not place.tokens:
        yield "With one password for all, a learner can sign in as another one. Leave it out: then each has a token."
    if not place.cert:
        yield "Without --cert and --key all of it goes unencrypted over the network."


def down(folder: Path) -> list[str]:
    """End a class, and collect its work; what to tell.

    Raises:
        LaunchError: there is none, or not all of it can be collected and taken away.
    """
    place = Place.read(folder)
    _end(place)
    if not place.apart:
        _kill([*_servers(place)])
    for learner in place.learners if place.apart else ():
        limits.end(learner)

    def take_away(learner: str) -> None:
        limits.remove(place, learner)
        place.learners.remove(learner)  # what is left can be ended by another `down`
        place.write()

    failed, told = _collected(place, _new_folder(folder), take_away)
    if failed:
        again = "Their work is still in the class, nothing else. Try again: workbench class down."
        raise LaunchError("\n".join([*failed, *told, again]))
    place.tokens_file.unlink(missing_ok=True)
    for part in (place.hub, folder / "env"):
        shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):
        (folder / "learners").rmdir()
    (folder / "class.json").unlink()
    return [*told, "Nothing else is left of the class."]


def collect(folder: Path, target: Path | None = None) -> list[str]:
    """Copy the work of a class that goes on; what to tell.

    Raises:
        LaunchError: there is no class, or the work of somebody cannot be read; that of the others is there.
    """
    place = Place.read(folder)
    failed, told = _collected(place, target or _new_folder(folder), lambda learner: None)
    if failed:
        raise LaunchError("\n".join([*failed, *told]))
    return told


def _new_folder(folder: Path) -> Path:
    """For what is collected now; the one before stays. Nobody else may read either."""
    (folder / "collected").mkdir(exist_ok=True)
    (folder / "collected").chmod(0o700)
    return folder / "collected" / time.strftime("%Y-%m-%d-%H%M%S")


def _collected(place: Place, target: Path, then: Callable[[str], None]) -> tuple[list[str], list[str]]:
    """Collect from all, whatever happens with one of them; whose work was not collected, and what to tell."""
    failed, told, count, all_ = list[str](), list[str](), 0, list(place.learners)
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o700)
    for learner in all_:
        try:
            files, missing = _collect(place, learner, target / learner)
            then(learner)
            count, told = count + files, told + missing
        except (OSError, LaunchError) as error:
            failed.append(f"{learner}: {error}")
    return failed, [*told, f"{count} files of {len(all_) - len(failed)} learners are in {target}."]


def names(number: int, file: Path | None) -> list[str]:
    """learner01 …, or the names in a file, one in a line.

    Raises:
        LaunchError: the file cannot be read.
    """
    if file is None:
        return [f"learner{i:02}" for i in range(1, number + 1)]
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{file} cannot be read: {error}. Names are in UTF-8, one in a line.") from None


def _secret() -> str:
    """Words and digits that can be read out: one of a billion."""
    return "-".join([*(secrets.choice(_WORDS.split()) for _ in range(4)), f"{secrets.randbelow(10_000):04}"])


def _checked(names: Sequence[str]) -> dict[str, str]:
    """What JupyterHub and the system take, and how it was given: small letters, digits and hyphens.

    Raises:
        LaunchError: a name is there twice, or nothing is left of it.
    """
    found: dict[str, str] = {}
    for name in names:
        plain = normalize("NFKD", normalize("NFC", name).lower().translate(_PLAIN))  # umlauts are written out
        plain = "".join(each for each in plain if each.isascii() and (each.isalnum() or each == "-")).strip("-")[:24]
        if not plain:
            raise LaunchError(f"{name!r} has no letter or digit for a name to sign in with.")
        if plain in found:
            raise LaunchError(
                f"{found[plain]!r} and {name!r} would both sign in as {plain}. Give them different names."
            )
        found[plain] = name
    if not found:
        raise LaunchError("A class needs a learner at least: --learners 30, or --names FILE.")
    return found


def _old(folder: Path) -> Place | None:
    try:
        return Place.read(folder)
    except LaunchError:
        return None


def _ready(place: Place, new: Sequence[str]) -> None:
    """Homes, users, disks and limits of all, before anybody comes.

    Raises:
        LaunchError: the system refuses one; what the new learners had got is taken away again.
    """
    for count, name in enumerate(place.learners):
        try:
            limits.make(place, name)
        except (LaunchError, OSError) as error:
            for each in new:
                limits.remove(place, each)
            place.learners = [each for each in place.learners if each not in new]
            place.write()
            cure = f" With --disk 0 no disk is made; here {count} can be." if "mount" in str(error) else ""
            raise LaunchError(f"{name} cannot be made ready: {error}.{cure}") from None


def _free(place: Place) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((place.host, place.port))
        except OSError as error:
            raise LaunchError(
                f"{place.host}:{place.port} cannot be used: {error.strerror}. Try another --port."
            ) from None


def _environment(place: Place) -> Path:
    """The hub's Python environment; what is installed here is seen from there, and nothing is changed here."""
    folder = place.folder / "env"  # learners read it: it is not in the hub's folder
    python, ready = folder / "bin" / "python", folder / "ready"
    needs = (*NEEDS, *(["batchspawner==1.3.0"] if place.slurm is not None else []))
    made_of = "\n".join((*needs, sys.executable))
    if ready.exists() and ready.read_text() == made_of:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *needs],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise LaunchError(f"The hub's environment cannot be made: {why}")
        if command[2] == "venv":  # first ours: pip then takes what is there already
            site = next((folder / "lib").glob("python*/site-packages"))
            lab = Path(str(find_spec("jupyterlab").origin)).parents[1]  # type: ignore[union-attr]
            paths = [str(lab), str(Path(__file__).resolve().parents[3])]
            (site / "lessons.pth").write_text("\n".join(paths) + "\n")
            kernel = folder / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
            kernel.parent.mkdir(parents=True)  # learners' cells run in this environment, where MPI and torch are
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            kernel.write_text(json.dumps({"argv": argv, "display_name": "Python 3 (ipykernel)", "language": "python"}))
    if place.apart:
        for each in (str(python), sys.executable):
            _everybody_can_run(each)
    write_whole(ready, made_of.encode())
    return folder


def _everybody_can_run(python: str) -> None:
    nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    try:
        done = subprocess.run([python, "-c", "import workbench"], capture_output=True, text=True, **nobody)
        why = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    except OSError as error:
        why = str(error)
    if why:
        raise LaunchError(
            f"Learners, who are not root, cannot run {python} or read what it needs: {why}\n"
            "Install Python and the workbench where all may read, such as below /opt. Or begin the class as an "
            "ordinary user: then learners are not kept apart."
        )


def _begin(place: Place, environment: Path) -> None:
    """Start the hub, and wait until it answers.

    Raises:
        LaunchError: it does not.
    """
    log = open(place.hub / "hub.log", "ab", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
    here = Path(sys.executable).parent  # where mpiexec may be
    path = f"{environment / 'bin'}:{here}:{child_environment().get('PATH', '')}"
    with log:
        hub = subprocess.Popen(
            [str(environment / "bin" / "jupyterhub"), "-f", str(Path(__file__).with_name("hub_config.py"))],
            cwd=place.hub,
            env=child_environment(PATH=path),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    with contextlib.suppress(OSError):  # where memory ends, the system does not choose the hub, if we may say so
        Path(f"/proc/{hub.pid}/oom_score_adj").write_text("-900")
    place.pid, place.begun = hub.pid, psutil.Process(hub.pid).create_time()
    place.write()
    until = time.monotonic() + _BEGIN_S
    secured = urllib.request.HTTPSHandler(context=_unverified(place))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), secured)  # this machine asks itself
    while time.monotonic() < until and hub.poll() is None:
        try:
            with opener.open(f"{place.address}hub/health", timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    _end(place)
    last = (place.hub / "hub.log").read_text(errors="replace").strip().splitlines()[-3:]
    raise LaunchError("The hub does not start. It said:\n  " + "\n  ".join(last))


def _end(place: Place) -> None:
    """JupyterHub ends its servers and its proxy; what is left of its family then, or without it, is killed."""
    hub, family = place.process(), []
    if hub is not None:
        family = [hub, *hub.children(recursive=True)]
        hub.terminate()
        family = psutil.wait_procs(family, timeout=_END_S)[1]
    family += [
        each
        for each in psutil.process_iter(["cwd", "cmdline"])
        if each.info["cwd"] == str(place.hub) and str(place.folder / "env") in " ".join(each.info["cmdline"] or ())
    ]
    _kill(family)
    if place.slurm is not None:
        subprocess.run(["scancel", f"--name={place.job}"], capture_output=True, timeout=_END_S)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=_END_S)


def _servers(place: Place) -> Iterator[psutil.Process]:
    """What a hub that was killed has left of learners who are no users of their own: servers, kernels, engines."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if f":{place.inner[0]}/" in process.environ().get("JUPYTERHUB_API_URL", ""):
                yield process


def _unverified(place: Place) -> ssl.SSLContext | None:
    """For this machine's own question whether it answers: a certificate has the name of the address outside."""
    if not place.cert:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _code(place: Place, environment: Path) -> list[str]:
    """The address as a QR code for a terminal."""
    text = f"import segno; segno.make({place.address!r}, micro=False).terminal(compact=True)"
    done = subprocess.run([str(environment / "bin" / "python"), "-c", text], capture_output=True, text=True, timeout=30)
    return done.stdout.splitlines()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} … {names[-1]}"


def _collect(place: Place, learner: str, target: Path) -> tuple[int, list[str]]:
    """Copy what a learner has written; how many files, and what was left out.

    A process with the learner's rights reads, for root would follow where a link leads meanwhile. What it sends is
    the learner's, too: names that leave the folder are refused, and there is an end to bytes and seconds.
    """
    most = 2 * (place.disk_mib or 1024) << 20
    rights = limits.rights(learner) if place.apart else {}
    words = [sys.executable, "-m", "workbench.cli.class_server.hand_over", str(place.home(learner)), str(most)]
    left_out, count, until = list[str](), 0, time.monotonic() + _COLLECT_S
    with (
        tempfile.TemporaryFile("w+", errors="replace") as said,
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=said, cwd="/", **rights) as reader,
    ):
        assert reader.stdout is not None
        try:
            with tarfile.open(fileobj=_Patient(reader.stdout, until), mode="r|") as archive:  # type: ignore[call-overload]
                for each in archive:
                    most -= each.size
                    name, file = PurePosixPath(each.name), archive.extractfile(each) if each.isfile() else None
                    if file is None or most < 0 or name.is_absolute() or ".." in name.parts:
                        continue
                    if (count := count + 1) > _MOST_FILES:
                        raise LaunchError(f"more than {_MOST_FILES} files")
                    try:
                        (target / name).parent.mkdir(parents=True, exist_ok=True)
                        with file, (target / name).open("wb") as copy:
                            shutil.copyfileobj(file, copy)
                    except (OSError, ValueError) as error:
                        if isinstance(error, OSError) and error.errno not in (ENAMETOOLONG, ENOTDIR, EISDIR):
                            raise
                        left_out.append(f"{each.name[:80]!a} ({error})")
        except tarfile.TarError as error:
            raise LaunchError(f"its files cannot be read to their end ({error})") from None
        finally:
            reader.kill()
        said.seek(0)
        left_out += said.read(4096).splitlines()
    return count, [f"{learner}: {clean(line)} was left out" for line in left_out]


class _Patient:
    """A pipe that is read until some time, and not for ever."""

    def __init__(self, pipe: IO[bytes], until: float) -> None:
        self._pipe, self._until = pipe, until

    def read(self, size: int) -> bytes:
        if not select.select([self._pipe], [], [], max(0.0, self._until - time.monotonic()))[0]:
            raise LaunchError(f"its files were not read within {_COLLECT_S:.0f} s")
        return os.read(self._pipe.fileno(), size)
