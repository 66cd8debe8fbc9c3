"""The user's Spark session: is it fit for a job, how many slots has it, and which of its tasks were lost, and why?

Spark tells the reasons of lost tasks to its JVM only. What is asked there is not part of Spark's stable interface; so
each such question has an answer for a Spark that does not know it.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench import config
from workbench.common.text import count
from workbench.errors import LaunchError

OLDEST = (4, 0)
_SETTLED_S = 30.0
_LOOK_S = 0.25
_TRACEBACK = "Traceback (most recent call last):"


def context() -> Any:
    """The active SparkContext.

    Raises:
        LaunchError: there is none, or pyspark is missing or too old.
    """
    try:
        import pyspark
    except ImportError:
        raise LaunchError(
            "pyspark is not installed in this environment: pip install 'pyspark>=4,<5' pandas pyarrow. Spark also "
            "needs Java 17 or newer."
        ) from None
    check_version(pyspark.__version__)
    active = pyspark.SparkContext._active_spark_context
    if active is None:
        raise LaunchError(f"Could not find an active SparkContext, are you running in a PySpark session? {_how()}")
    check_version(active.version)
    return active


def check_version(version: str) -> None:
    """Is this version of Spark new enough?

    Raises:
        LaunchError: it is not.

    Example:
        >>> check_version("4.3.0")
        >>> check_version("3.5.1")
        Traceback (most recent call last):
        workbench.errors.LaunchError: Spark 3.5.1 is old; the workbench needs 4.0 or newer: pip install 'pyspark>=4,<5'.
    """
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise LaunchError(
            f"Spark {version} is old; the workbench needs {needed} or newer: pip install 'pyspark>={OLDEST[0]},<5'."
        )


def _how() -> str:
    if not has_java():
        return "SparkSession.builder.getOrCreate() makes one, but needs Java 17 or newer, and no java is found here."
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        return "This session is one of Spark Connect, which cannot start ranks: make one with .master(), not .remote()."
    return "SparkSession.builder.getOrCreate() makes one."


def has_java() -> bool:
    """Is there a Java for Spark?"""
    home = config.java_home()
    return (Path(home) / "bin" / "java").exists() if home else bool(shutil.which("java"))


def is_local(sc: Any) -> bool:
    """Are the driver and its tasks on one machine, in one JVM?"""
    return str(sc.master).startswith("local") and not str(sc.master).startswith("local-cluster")


def address(sc: Any) -> str:
    """Where tasks reach the driver: as ``spark.driver.host`` says, for Spark's own connections go there, too."""
    return "127.0.0.1" if is_local(sc) else str(sc.getConf().get("spark.driver.host"))


def slots(sc: Any) -> int:
    """So many tasks may run at once now."""
    jvm = sc._jsc.sc()
    try:
        return int(jvm.maxNumConcurrentTasks(jvm.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # noqa: BLE001 - of py4j: this Spark does not know the question
        return int(sc.defaultParallelism)


def wait_for_slots(sc: Any, n: int, until: float) -> None:
    """Until ``n`` tasks may run at once. Executors register one by one after the session's start.

    Args:
        sc: the SparkContext.
        n: how many.
        until: deadline; it is over before, when the number has not changed for a while.

    Raises:
        LaunchError: there are fewer.
    """
    have, since = slots(sc), time.monotonic()
    until = min(until, since) if is_local(sc) else until
    while have < n:
        if (now := time.monotonic()) >= min(until, since + _SETTLED_S):
            raise LaunchError(
                f"{count(n, 'rank')} need {count(n, 'slot')} at the same time, and this Spark application has {have} "
                f"(at {sc.master}). Ask for fewer by num_proc=, or give the application more cores: spark.cores.max, "
                "spark.executor.instances, spark.executor.cores; a slot takes spark.task.cpus of them, and "
                "spark.task.resource.gpu.amount GPUs."
            )
        time.sleep(_LOOK_S)
        if (new := slots(sc)) != have:
            have, since = new, now


def lost_tasks(sc: Any, tag: str) -> list[str]:
    """What Spark says of the tasks that failed, in jobs with this tag: ``task 2 on 10.0.0.5 (executor 1): why``."""
    found: list[str] = []
    with contextlib.suppress(Exception):  # of py4j: this Spark does not know the question
        jvm = sc._jsc.sc()
        for job in jvm.statusTracker().getJobIdsForTag(tag):
            for stage in jvm.statusTracker().getJobInfo(job).get().stageIds():
                tasks = jvm.statusStore().taskList(stage, 0, 10_000)
                found += filter(None, (_failure(tasks.apply(i)) for i in range(tasks.size())))
    return found


def _failure(task: Any) -> str:
    if str(task.status()) != "FAILED":
        return ""
    why = task.errorMessage()
    text = first_line(str(why.get()) if why.isDefined() else "no reason is known")
    return f"task {task.index()} on {task.host()} (executor {task.executorId()}): {text}"


def first_line(text: str) -> str:
    r"""What an error of Spark says, without its Java classes and stack.

    Example:
        >>> first_line("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)\n\tat org.ap")
        'Python worker exited unexpectedly (crashed)'
    """
    lines = [line.rstrip() for line in text.strip().splitlines() if line.strip()] or ["no reason is known"]
    if _TRACEBACK in text:  # of a Python task: the first line that is not indented is the exception
        after = lines[next(i for i, line in enumerate(lines) if line.endswith(_TRACEBACK)) + 1 :]
        return next((line for line in after if not line[0].isspace()), lines[0])
    head, _, tail = lines[0].partition(": ")
    return tail if tail and "." in head and " " not in head else lines[0]


def until_true(what: Callable[[], Any], timeout_s: float) -> Any:
    """The first true answer, or the last one when the time is over."""
    until = time.monotonic() + timeout_s
    while not (found := what()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return found
