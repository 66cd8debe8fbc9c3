"""JupyterHub's configuration for a class; JupyterHub runs this file, in the folder with its own files.

What a learner starts is a JupyterLab with the lessons, as ``workbench lab`` starts it, under the learner's own user.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import compare_digest
from subprocess import DEVNULL
from typing import Any

from jupyterhub.auth import Authenticator
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from jupyterhub.utils import wait_for_server

from workbench.cli.class_server import limits
from workbench.cli.class_server.place import Place

PLACE = Place.read(Path.cwd().parent)
_BIN = Path(sys.executable).parent
_SHARE = Path(str(find_spec("jupyterlab").origin)).parents[4] / "share" / "jupyter"  # type: ignore[union-attr]


def _home(learner: str) -> dict[str, str]:
    """The home; and a short name for the folder of sockets, for a socket's is limited to 107 bytes."""
    home = PLACE.home(learner)
    return {"HOME": str(home), "JUPYTER_RUNTIME_DIR": str(home / ".run")}


class _Learners:
    """What both kinds of spawners have in common.

    Some servers start at a time: thirty at once would all be slow, and these are soon there one behind the other.
    """

    user: Any
    turns = asyncio.Semaphore(2 * (os.cpu_count() or 1))

    async def start(self) -> tuple[str, int]:
        async with self.turns:
            ip, port = await super().start()  # type: ignore[misc]
            with suppress(TimeoutError):
                await wait_for_server(ip, port, timeout=60)
            return ip, port


class Apart(_Learners, LocalProcessSpawner):  # type: ignore[misc]
    """A user of the system for each learner, with limits."""

    def make_preexec_fn(self, name: str) -> Callable[[], None]:
        become = super().make_preexec_fn(limits.user(name))

        def begin() -> None:
            limits.enter(PLACE, name)
            become()

        return begin

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        return {**env, **_home(self.user.name), "USER": limits.user(self.user.name), "SHELL": "/bin/bash"}


class Together(_Learners, SimpleLocalProcessSpawner):  # type: ignore[misc]
    """All as the instructor's own user: for a class of people who trust each other."""

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        return {**env, **_home(self.user.name)}


class Tokens(Authenticator):  # type: ignore[misc]
    """A token for each learner."""

    async def authenticate(self, handler: Any, data: dict[str, str]) -> str | None:
        token = PLACE.tokens.get(data["username"].lower(), "")
        return data["username"] if token and compare_digest(token.encode(), data["password"].encode()) else None


def _in_jobs() -> type:
    from batchspawner import SlurmSpawner

    class InJobs(SlurmSpawner):  # type: ignore[misc]
        """Each server a job, of the user who has begun the class."""

        exec_prefix = ""
        batch_script = (
            "#!/bin/bash\n"
            f"#SBATCH --job-name={PLACE.job} --mem={PLACE.memory_mib}M --cpus-per-task={PLACE.cores}\n"
            f"#SBATCH {PLACE.slurm}\n"
            "#SBATCH --output={{homedir}}/.server.log --chdir={{homedir}} --export={{keepvars}}\n"
            "exec {{cmd}}\n"
        )

        def get_req_subvars(self) -> dict[str, str]:
            self.req_homedir = str(PLACE.home(self.user.name))  # the learner is no user of the system
            return dict(super().get_req_subvars())

        def user_env(self, env: dict[str, str]) -> dict[str, str]:
            return {**env, **_home(self.user.name)}

        def cmd_formatted_for_batch(self) -> str:
            shell, server = self.cmd[:4], self.cmd[4:]  # the second is Python's, and is told its port there
            return shlex.join([*shell, str(_BIN / self.batchspawner_singleuser_cmd), *server, *self.get_args()])

    return InJobs


c = get_config()  # type: ignore[name-defined] # noqa: F821 - JupyterHub gives it
scheme = "https" if PLACE.cert else "http"
c.JupyterHub.bind_url = f"{scheme}://{PLACE.host}:{PLACE.port}"
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = PLACE.cert, PLACE.key
_INSIDE = "127.0.0.1" if PLACE.slurm is None else PLACE.host  # where servers find the hub
c.JupyterHub.hub_bind_url = f"http://{_INSIDE}:{PLACE.inner[0]}"
# Else it breaks a request off after 20 s, also the one by which a learner's page hears that the server is there.
c.ConfigurableHTTPProxy.command = ["configurable-http-proxy", "--proxy-timeout=3600000"]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{PLACE.inner[1]}"
c.JupyterHub.db_url = f"sqlite:///{PLACE.hub / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(PLACE.hub / "cookie_secret")
c.JupyterHub.authenticator_class = Tokens if PLACE.tokens else "shared-password"
c.SharedPasswordAuthenticator.user_password = PLACE.password
c.Authenticator.allowed_users = set(PLACE.learners)
c.JupyterHub.spawner_class = _in_jobs() if PLACE.slurm is not None else Apart if PLACE.apart else Together
c.Spawner.start_timeout = c.Spawner.http_timeout = 600  # who comes last waits for all others
c.Spawner.args = [
    f"--LabApp.app_dir={_SHARE / 'lab'}",
    "--ServerApp.allow_root=True",
    "--ContentsManager.allow_hidden=True",
    "--KernelManager.transport=ipc",  # what a kernel prints goes over sockets in a closed folder, not over ports
    f"--MappingKernelManager.cull_idle_timeout={60 * PLACE.idle_min}",  # with its engines, where no page shows it
]
_CONFIG = [_SHARE.parents[1] / "etc" / "jupyter", Path(__file__).parents[1] / "lab_config"]
c.Spawner.environment = {
    "JUPYTER_PATH": f"{_BIN.parent / 'share' / 'jupyter'}:{_SHARE}",
    "JUPYTER_CONFIG_PATH": ":".join(map(str, _CONFIG)),
}
c.Spawner.default_url = "/lab"
c.JupyterHub.implicit_spawn_seconds = 1  # a link to a notebook starts the learner's server
# The learner copies the lessons: root writes nothing where somebody else may have put a link.
# Its output goes to its own disk: who had the hub's log could fill the machine's, and write in it.
_COPY = 'exec >"$HOME/.server.log" 2>&1; "$0" -m workbench.cli.main lessons "$HOME"; exec "$@"'
c.LocalProcessSpawner.popen_kwargs = {"stdout": DEVNULL, "stderr": DEVNULL}
c.Spawner.cmd = ["bash", "-c", _COPY, sys.executable, str(_BIN / "jupyterhub-singleuser")]
c.JupyterHub.services = [
    {
        "name": "cull-idle",
        "command": [sys.executable, "-m", "jupyterhub_idle_culler", f"--timeout={60 * PLACE.idle_min}"],
    }
]
_SCOPES = ["list:users", "read:users:activity", "read:servers", "delete:servers"]
c.JupyterHub.load_roles = [{"name": "cull-idle", "scopes": _SCOPES, "services": ["cull-idle"]}]
