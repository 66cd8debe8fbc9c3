"""Settings and the launcher's variables, read from made-up environments."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as check
from hypothesis import strategies as st

from workbench.config import (
    HOROVOD_NAMES,
    BatchPart,
    Launch,
    Settings,
    batch_parts,
    cache_dir,
    first_host,
    launch,
    settings,
)
from workbench.errors import LaunchError
from workbench.transport.select import find_ranks

# A busy machine is no failure: no deadline per example.
PROPERTY = check(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NUMBERS = [field for field in fields(Settings) if isinstance(field.default, int | float)]
WHOLE = [field.name for field in NUMBERS if isinstance(field.default, int)]


def own(name: str) -> str:
    """The variable of a field."""
    return f"WORKBENCH_{name.upper()}"


def test_an_empty_environment_gives_the_defaults() -> None:
    """Without variables, and with foreign ones only, every setting has its default."""
    assert settings({}) == Settings()
    assert settings({"PATH": "/bin", "WORKBENCH_NO_SUCH_SETTING": "1"}) == Settings()


@PROPERTY
@given(st.sampled_from(NUMBERS), st.integers(0, 10**9))
def test_every_number_has_its_variable(field, value: int) -> None:  # type: ignore[no-untyped-def]
    """A setting's own variable sets that setting, with its type, and no other."""
    found = settings({own(field.name): str(value)})
    assert getattr(found, field.name) == value
    assert type(getattr(found, field.name)) is type(field.default)
    assert all(getattr(found, other.name) == other.default for other in fields(Settings) if other.name != field.name)


@pytest.mark.parametrize("text", ["gloo", "GLOO", " Gloo "])
def test_a_backend_may_be_written_in_capitals(text: str) -> None:
    """Horovod's documentation writes ``HOROVOD_CPU_OPERATIONS=MPI``: that is no unknown backend."""
    assert find_ranks(Launch("none"), settings({"HOROVOD_CPU_OPERATIONS": text})).size == 1
    with pytest.raises(LaunchError, match="ccl"):
        find_ranks(Launch("none"), settings({"HOROVOD_CPU_OPERATIONS": "ccl"}))


def test_a_files_name_stays_as_it_is() -> None:
    """Capitals in a path mean something."""
    assert settings({"HOROVOD_TIMELINE": "/tmp/Run1.json "}).timeline == "/tmp/Run1.json"


@PROPERTY
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_horovods_variables_count_in_horovods_units(one: int, other: int) -> None:
    """HOROVOD_CYCLE_TIME is in milliseconds, the rest in our units; a WORKBENCH variable wins over it."""
    env = {"HOROVOD_CYCLE_TIME": str(one), "HOROVOD_FUSION_THRESHOLD": str(one), "HOROVOD_CACHE_CAPACITY": str(one)}
    found = settings(env)
    assert found.fusion_window_s == pytest.approx(one / 1000)
    assert (found.fusion_threshold_bytes, found.cache_capacity) == (one, one)
    assert settings(env | {"WORKBENCH_CACHE_CAPACITY": str(other)}).cache_capacity == other


def test_every_horovod_name_is_of_a_setting() -> None:
    """The table of Horovod's names speaks of settings that exist."""
    assert set(HOROVOD_NAMES) <= {field.name for field in fields(Settings)}


def test_what_is_no_number_is_refused() -> None:
    """The error names the variable and the text that it held; an infinite count is no number either."""
    for name in (field.name for field in NUMBERS):
        for text in ["", "many", "1,5", "-1", "nan", "-inf", *(["inf", "1e999"] if name in WHOLE else [])]:
            with pytest.raises(ValueError, match=f"{own(name)}={text!r}"):
                settings({own(name): text})


def test_the_error_names_horovods_variable_where_that_was_read() -> None:
    """Whoever set HOROVOD_CYCLE_TIME reads of HOROVOD_CYCLE_TIME."""
    with pytest.raises(ValueError, match="HOROVOD_CYCLE_TIME='fast'"):
        settings({"HOROVOD_CYCLE_TIME": "fast"})


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the functions read this process's variables, each time anew."""
    monkeypatch.setenv("WORKBENCH_CACHE_CAPACITY", "7")
    assert settings().cache_capacity == 7
    monkeypatch.setenv("WORKBENCH_CACHE_CAPACITY", "8")
    assert settings().cache_capacity == 8
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/workbench")
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PMI_SIZE", "3")
    assert launch().size == 3


def test_settings_do_not_change() -> None:
    """Nobody can change the settings of a running job."""
    with pytest.raises(FrozenInstanceError):
        Settings().cache_capacity = 1  # type: ignore[misc]


def test_the_cache_folder_has_a_place_without_xdg() -> None:
    """An unset or empty XDG_CACHE_HOME means ``~/.cache``."""
    assert cache_dir({}) == cache_dir({"XDG_CACHE_HOME": ""}) == Path.home() / ".cache" / "workbench"


OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "1234",
}
BATCH = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
SRUN = BATCH | {"SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NODELIST": "gpu[03-05,9]"}


def test_the_launcher_is_recognised() -> None:
    """Each launcher's variables give its name, the four numbers and the meeting point."""
    for env, expected in [
        ({}, Launch("none")),
        (OPENMPI, Launch("openmpi", 3, 8, 1, 2)),
        (MPICH, Launch("mpich", 3, 8, 1, 2)),
        ({"PMI_RANK": "0"}, Launch("mpich")),
        (TORCHRUN, Launch("torchrun", 3, 8, 1, 2, "node7", 1234)),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, Launch("torchrun", 3, 8, 1, 2, "node7", 29500)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Launch("none")),
        (SRUN | {"PMIX_RANK": "3"}, Launch("pmix", 3, 8, 1, 1)),
        (BATCH, Launch("none")),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, Launch("none")),
        # The most specific launcher wins: Slurm's variables are there under every other one.
        (SRUN | OPENMPI, Launch("openmpi", 3, 8, 1, 2)),
        (SRUN | MPICH, Launch("mpich", 3, 8, 1, 2)),
        (SRUN | TORCHRUN, Launch("torchrun", 3, 8, 1, 2, "node7", 1234)),
        # Open MPI's numbers beside another launcher's are for scripts that look at them; its runtime says more.
        (MPICH | OPENMPI, Launch("mpich", 3, 8, 1, 2)),
        (MPICH | TORCHRUN | OPENMPI, Launch("mpich", 3, 8, 1, 2)),
        (TORCHRUN | OPENMPI, Launch("torchrun", 3, 8, 1, 2, "node7", 1234)),
        ({"PMI_RANK": "0"} | OPENMPI | {"PMIX_RANK": "3"}, Launch("openmpi", 3, 8, 1, 2)),
    ]:
        assert launch(env) == expected


def test_slurm_ranks_agree_about_the_meeting_point() -> None:
    """All ranks of a step get one address and port; a neighbouring step and job get other ports."""
    ranks = [launch(SRUN | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"}) for rank in range(8)]
    assert [found.rank for found in ranks] == list(range(8))
    assert {(found.address, found.launcher, found.size) for found in ranks} == {("gpu03", "slurm", 8)}
    ports = {found.port for found in ranks}
    others = [launch(SRUN | {"SLURM_STEP_ID": "3"}).port, launch(SRUN | {"SLURM_JOB_ID": "4712"}).port]
    assert len(ports) == 1
    assert len(ports | set(others)) == 3
    assert all(1024 < port < 65536 for port in [*ports, *others])


def test_a_launchers_nonsense_is_named() -> None:
    """A variable that is no whole number is named in a LaunchError."""
    for env, name in [
        (MPICH | {"PMI_RANK": "three"}, "PMI_RANK"),
        (OPENMPI | {"OMPI_COMM_WORLD_SIZE": "8.0"}, "OMPI_COMM_WORLD_SIZE"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT"),
        (SRUN | {"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID"),
    ]:
        with pytest.raises(LaunchError, match=f"{name}="):
            launch(env)


HOST = st.from_regex(r"[a-z]{1,5}(-[a-z]{1,3})?", fullmatch=True)


@st.composite
def node_lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A Slurm node list and the hosts that it stands for, written out one by one."""
    texts, hosts = [], []
    for _ in range(draw(st.integers(1, 3))):
        text, names = "", [""]
        for _ in range(draw(st.integers(1, 3))):  # a name may count racks, nodes and more, each between brackets
            word, numbers, width = draw(HOST), [], draw(st.integers(1, 4))
            for _ in range(draw(st.integers(0, 3))):
                low = draw(st.integers(0, 10**width - 1))
                high = min(low + draw(st.integers(0, 3)), 10**width - 1)
                numbers += [(f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}", low, high)]
            text += word + (f"[{','.join(part for part, _, _ in numbers)}]" if numbers else "")
            ends = [f"{one:0{width}}" for _, low, high in numbers for one in range(low, high + 1)] or [""]
            names = [f"{name}{word}{end}" for name in names for end in ends]
        texts.append(text)
        hosts += names
    return ",".join(texts), hosts


@PROPERTY
@given(node_lists())
def test_first_host_is_the_first_of_the_written_out_list(case: tuple[str, list[str]]) -> None:
    """For every node list, the first host is the one that writing the list out gives."""
    text, hosts = case
    assert first_host(text) == hosts[0]


def test_the_hosts_of_a_batch_job() -> None:
    """Slurm says how many hosts a job has and which, of each component of a heterogeneous one; none elsewhere."""
    two = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "gpu[03-04]"}
    assert batch_parts(two) == [BatchPart(2, "gpu[03-04]")]
    old = {"SLURM_NNODES": "3", "SLURM_NODELIST": "a,b,c"}  # as older versions say it
    assert batch_parts(old) == [BatchPart(3, "a,b,c")]
    assert batch_parts({}) == []
    second = {"SLURM_JOB_NODELIST_HET_GROUP_1": "c1", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "8"}
    first = {"SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[03-04]", "SLURM_JOB_NUM_NODES_HET_GROUP_0": "2"}
    assert batch_parts({"SLURM_HET_SIZE": "2"} | first | second) == [*batch_parts(two), BatchPart(1, "c1", "8")]
    assert batch_parts({"SLURM_HET_SIZE": "2"} | two) == batch_parts(two)  # in a step over all components
