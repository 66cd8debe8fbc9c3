"""A standalone Spark cluster on this machine: a master and workers, on loopback, with authentication."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

READY_S = 60.0
_MEMORY = "512m"


def missing() -> str:
    """Why no Spark can run here; "" if it can."""
    if not all(find_spec(name) for name in ("pyspark", "pandas", "pyarrow")):
        return "pyspark, pandas or pyarrow is not installed: make setup EXTRAS=…,spark"
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin", "java").exists() if home else shutil.which("java")):
        return "no Java is here: apt install openjdk-17-jre-headless"
    return ""


@dataclass(frozen=True)
class Cluster:
    """One that runs.

    Args:
        url: of its master.
        folder: its logs and work files.
        conf: what an application must say.
        env: what a driver must have in its environment.
        processes: of the master and the workers.
    """

    url: str
    folder: Path
    conf: dict[str, str]
    env: dict[str, str]
    processes: list[subprocess.Popen[bytes]]

    def python_workers(self) -> list[psutil.Process]:
        """The processes in which tasks run: children of Spark's Python daemons."""
        found = self._pythons()
        return [each for each, parent in found.items() if parent in found]

    def _pythons(self) -> dict[psutil.Process, psutil.Process | None]:
        """Spark's Python daemons and their workers, each with its parent."""
        found = {}
        for process in self.processes:
            for each in _children(process.pid):
                with contextlib.suppress(psutil.Error):
                    if "pyspark.daemon" in each.cmdline():
                        found[each] = each.parent()
        return found

    def executors(self) -> list[psutil.Process]:
        """Those of them that are connected to this process, for Spark keeps others for later tasks."""
        ports = {each.laddr.port for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"}
        found = []
        for each in self.python_workers():
            with contextlib.suppress(psutil.Error):
                if any(one.raddr and one.raddr.port in ports for one in each.net_connections("tcp")):
                    found.append(each)
        return found

    @contextlib.contextmanager
    def no_new_tasks(self) -> Iterator[None]:
        """Within the block no task begins: what starts Python workers is stopped, and so are those without a task."""
        idle = self._pythons().keys() - set(self.executors())
        try:
            for each in idle:
                each.suspend()
            yield
        finally:
            for each in idle:
                each.resume()

    def agents(self) -> list[psutil.Process]:
        """Those that run a node's agent, and with it all of its ranks."""
        return [each for each in self.executors() if each.children()]


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2, cores: int = 2) -> Iterator[Cluster]:
    """Start it; whatever it has started is ended by its process id.

    Each worker has two GPUs, 4 and 7, as far as Spark knows. An application's executors have ``cores`` cores; each
    worker has one more, for a second application of small ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    secret = secrets.token_hex(16)
    # Without the block manager's and the UI's ports nothing listens that a job does not need.
    conf = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.executor.memory": _MEMORY,
        "spark.driver.memory": _MEMORY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.cores": str(cores),
        "spark.pyspark.python": sys.executable,
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.shuffle.partitions": "4",
        "spark.local.dir": str(folder / "local"),
    }
    gpus = folder / "gpus.sh"  # of each worker, for applications that ask for some
    gpus.write_text('#!/bin/sh\necho \'{"name": "gpu", "addresses": ["4", "7"]}\'\n')
    gpus.chmod(0o700)
    settings = folder / "conf"
    settings.mkdir(mode=0o700)
    worker = {"spark.worker.resource.gpu.amount": "2", "spark.worker.resource.gpu.discoveryScript": str(gpus)}
    lines = "".join(f"{name} {value}\n" for name, value in (conf | worker).items())
    (settings / "spark-defaults.conf").write_text(lines)
    (settings / "log4j2.properties").write_text(_LOGS)
    env = {
        **os.environ,
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []
    try:
        words = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        processes.append(_start(words, env, folder / "master.log"))
        for i in range(workers):
            words = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", str(cores + 1)]
            words += ["--memory", "1200m", "--work-dir", str(folder / f"work{i}"), url]
            processes.append(_start(words, env, folder / f"worker{i}.log"))
        _wait_for(folder / "master.log", "Registering worker", workers)
        yield Cluster(url, folder, {**conf, "spark.master": url}, env, processes)
    finally:
        end(processes)


_LOGS = """\
rootLogger.level = info
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def _start(words: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with log.open("wb") as file:
        return subprocess.Popen(
            [program, f"org.apache.spark.deploy.{words[0]}", *words[1:]], env=env, stdout=file, stderr=file
        )


def _wait_for(log: Path, text: str, times: int) -> None:
    until = time.monotonic() + READY_S
    while (found := log.read_text(errors="replace").count(text)) < times:
        if time.monotonic() > until:
            raise TimeoutError(f"{found} of {times} × {text!r} in {log}:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """They, and what they have started."""
    found: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for each in reversed(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.terminate()
    _, alive = psutil.wait_procs(found, 10.0)
    for each in alive:
        each.kill()
    for process in processes:
        process.wait(10.0)
