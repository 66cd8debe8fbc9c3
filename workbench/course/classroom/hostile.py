"""What a hostile notebook tries; each cell prints a line, ``held: …``, or ``BROKEN: …`` with what it could do.

They run in a rehearsal only, as a learner's user with the learner's limits.
"""

from __future__ import annotations

_TARGETS = """
import contextlib, os, pathlib, pwd, signal, socket, time
me, here = os.getuid(), pathlib.Path.home()
theirs = {pwd.getpwnam(f"wb-{name}").pw_uid for name in NAMES} | {0}
def others():
    for each in pathlib.Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if each.stat().st_uid in theirs:
                yield int(each.name)
def tell(what, found):
    print(f"BROKEN: {what}: {found[:3]}" if found else f"held: {what}")
"""

CELLS = {
    "forks without end": """
children = []
with contextlib.suppress(OSError):
    while len(children) < 20000:
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
tell("forks end", [len(children)] if len(children) >= 20000 else [])
""",
    "fills the disk": """
written = 0
try:
    with open(here / "big", "wb") as file:
        while written < 200 << 30:
            written += file.write(bytes(16 << 20))
            file.flush()
except OSError:
    written = 0
(here / "big").unlink(missing_ok=True)
tell("the disk ends", [written] if written else [])
""",
    "kills others": """
ended = []
for pid in others():
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
        ended.append(pid)
tell("nobody else can be ended", ended)
""",
    "reads others": """
seen, top = [], here.parent.parent
hidden = (top, top / "class.json", top / "collected", top / ".hub", top / ".hub" / "hub.sqlite")
for path in (*hidden, *(here.parent / name for name in NAMES)):
    with contextlib.suppress(OSError):
        seen += [*path.iterdir()] if path.is_dir() else [path.read_bytes()[:9]]
for pid in others():
    for name in ("environ", "mem"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            seen += [f"{name} of {pid}"] if file.read(1) else []
for folder in ("/dev/shm", "/tmp"):
    for at, _, names in os.walk(folder):
        for path in (pathlib.Path(at, name) for name in names):
            with contextlib.suppress(OSError):
                if path.stat().st_uid in theirs - {0} and path.is_file() and path.read_bytes():
                    seen.append(str(path))
tell("nobody else can be read", seen)
""",
    "asks others' servers": """
import zmq
answers, ports = [], set()
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    local, state, uid = line.split()[1], line.split()[3], int(line.split()[7])
    if state == "0A" and uid in theirs - {0}:  # root's other jobs are no part of the class
        ports.add(int(local.partition(":")[2], 16))
paths = ["/api/contents", "/api/kernels", "/hub/api/users", "/api/routes", *(f"/user/{n}/api/kernels" for n in NAMES)]
listening = zmq.Context().socket(zmq.SUB)
listening.subscribe(b"")
for port in ports:
    listening.connect(f"tcp://127.0.0.1:{port}")
    for path in paths:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as asked:
                asked.settimeout(1)
                asked.sendall(f"GET {path} HTTP/1.0\\r\\nHost: x\\r\\n\\r\\n".encode())
                first = asked.recv(200).split(b"\\r\\n")[0]
        except OSError:
            break
        if b" 200" in first:
            answers.append((port, path, first[:20]))
if listening.poll(5000):
    answers.append(listening.recv()[:40])
tell("no server answers without a key", answers)
""",
    "burns cores": """
for _ in range(16):
    if not os.fork():
        until = time.monotonic() + 10
        while time.monotonic() < until:
            pass
        os._exit(0)
for _ in range(16):
    os.wait()
tell("cores are shared", [])
""",
    "takes 40 GB": """
taken = []
while len(taken) < 40 * 16:
    taken.append(bytearray(b"x" * (64 << 20)))
tell("memory ends", [len(taken)])
""",
}


def cell(name: str, learners: list[str]) -> str:
    """The code of an attack on a class.

    Example:
        >>> "NAMES = ['ada']" in cell("kills others", ["ada", "alan"][:1])
        True
    """
    return f"NAMES = {learners!r}\n{_TARGETS}{CELLS[name]}"


def held(told: str) -> bool:
    """Has the class held? A kernel that is ended for its memory is its own learner's loss.

    Example:
        >>> held("held: forks end"), held("the kernel has died"), held("BROKEN: …")
        (True, True, False)
    """
    return told.startswith("held") or told in ("the kernel has died", "MemoryError:")
