"""A class's folder: what it was begun with, where each learner's work is, and which processes belong to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

import psutil

from workbench.common.whole_file import write_whole
from workbench.errors import LaunchError

FILE = "class.json"


@dataclass
class Place:
    """A class.

    Args:
        folder: all of it is below; only its owner may read the file ``class.json``, for the password stands in it.
        port: of the address.
        host: of the address.
        password: of the class.
        learners: their names.
        apart: has each a user of the system? Only root can make them.
        memory_mib, processes, disk_mib, cores: of each learner, at most.
        idle_min: after so long without anything done, a learner's server ends.
        cert, key: for HTTPS; files.
        tokens: by learner, in place of the password; {} without.
        slurm: options of sbatch, where each learner's server is a job of Slurm's; None on this machine.
        inner: ports of the hub and of the proxy's own door, on loopback: servers find the hub there when it is begun
            again.
        pid, begun: of the hub, and when it began: another process may have the number later.
    """

    folder: Path
    port: int = 8000
    host: str = ""
    password: str = ""
    learners: list[str] = field(default_factory=list)
    apart: bool = False
    memory_mib: int = 2048
    processes: int = 400
    disk_mib: int = 1024
    cores: int = 2
    idle_min: int = 30
    cert: str = ""
    key: str = ""
    tokens: dict[str, str] = field(default_factory=dict)
    slurm: str | None = None
    inner: list[int] = field(default_factory=list)
    pid: int = 0
    begun: float = 0.0

    @classmethod
    def read(cls, folder: Path) -> Place:
        """The class of a folder.

        Raises:
            LaunchError: there is none.
        """
        try:
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return cls(**{**found, "folder": folder})
        except (OSError, ValueError, TypeError) as error:
            raise LaunchError(f"{folder} has no class in it ({error}). `workbench class up` begins one.") from None

    def write(self) -> None:
        """Remember it."""
        path = self.folder / FILE
        path.touch(mode=0o600)  # which write_whole keeps
        write_whole(path, json.dumps({**asdict(self), "folder": str(self.folder)}, indent=1).encode())

    @property
    def hub(self) -> Path:
        """The hub's own files; nobody else may enter."""
        return self.folder / ".hub"

    @property
    def tokens_file(self) -> Path:
        """For the instructor, to hand out."""
        return self.folder / "tokens.csv"

    @property
    def job(self) -> str:
        """The name of Slurm's jobs: no other class has it."""
        return f"workbench-{sha256(str(self.folder).encode()).hexdigest()[:12]}"

    @property
    def address(self) -> str:
        return f"http{'s' if self.cert else ''}://{self.host}:{self.port}/"

    def home(self, learner: str) -> Path:
        """A learner's folder, with the lessons in it."""
        return self.folder / "learners" / learner

    def process(self) -> psutil.Process | None:
        """The hub's, if it runs."""
        try:
            found = psutil.Process(self.pid) if self.pid else None
            if found is None or found.status() == psutil.STATUS_ZOMBIE or abs(found.create_time() - self.begun) > 1:
                return None
            return found
        except psutil.NoSuchProcess:
            return None
