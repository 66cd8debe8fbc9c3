"""The command line of ``workbench``, and the parts of the launcher that start nothing."""

from __future__ import annotations

import argparse
import io
import itertools
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM

import psutil
import pytest
from hypothesis import given
from hypothesis import settings as check
from hypothesis import strategies as st
from thorough import once_more

import workbench
from workbench import config
from workbench.cli import flags
from workbench.cli import main as cli
from workbench.cli.flags import VARIABLES, has_effect, with_flags
from workbench.diagnostics import check_build
from workbench.errors import LaunchError
from workbench.launch.ranks.ending import Ending
from workbench.launch.ranks.output import Lines, Printer, last_traceback
from workbench.launch.start import hosts, mpi, starters
from workbench.observe.report import html

ROOT = Path(workbench.__file__).parent.parent
CLI = [sys.executable, "-m", "workbench.cli.main"]
CONVERTED = str(ROOT / "tests" / "convert" / "corpus" / "ddp_torchrun.py")

# Every option of `horovodrun --help` (0.28.1), with a value where it takes one.
HOROVODRUN = """
-v|--version|-cb|--check-build|--disable-cache|--start-timeout 9|--network-interfaces a,b|--network-interface a
--output-filename d|--verbose|--config-file f|-p 22|--ssh-port 22|-i key|--ssh-identity-file key
--fusion-threshold-mb 32|--cycle-time-ms 2.5|--cache-capacity 7|--hierarchical-allreduce|--no-hierarchical-allreduce
--hierarchical-allgather|--no-hierarchical-allgather|--torus-allreduce|--no-torus-allreduce|--autotune
--autotune-log-file f|--autotune-warmup-samples 1|--autotune-steps-per-sample 2|--autotune-bayes-opt-max-samples 3
--autotune-gaussian-process-noise 0.5|--min-np 1|--min-num-proc 1|--max-np 4|--max-num-proc 4|--slots-per-host 2
--elastic-timeout 60|--reset-limit 3|--blacklist-cooldown-range 1 60|--timeline-filename t.json|--timeline-mark-cycles
--no-stall-check|--stall-check-warning-time-seconds 5|--stall-check-shutdown-time-seconds 6|--mpi-threads-disable
--mpi-args=-x|--tcp|--binding-args=-x|--num-nccl-streams 2|--thread-affinity 1|--gloo-timeout-seconds 3
--log-level INFO|--log-without-timestamp|-prefix-timestamp|--prefix-output-with-timestamp|-H a:1|--hosts a:1
-hostfile f|--hostfile f|--host-discovery-script s|--gloo|--mpi|--jsrun
"""


def parse(*words: str) -> argparse.Namespace:
    """The options of ``workbench run -np 2 <words> python``."""
    return cli.parser().parse_args(["run", "-np", "2", *words, "python"])


def variables(*words: str, **env: str) -> dict[str, str]:
    """What these options make of an environment."""
    return with_flags(env, flags.variables(parse(*words)))


def workbench_command(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    return subprocess.run(
        [*CLI, *words],
        capture_output=True,
        text=True,
        timeout=50,
        env=mpi.environment(1) | env,
        stdin=subprocess.DEVNULL,
    )


# --- help ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_is_there_at_once(words: list[str]) -> None:
    """``--help`` costs less than 0.3 s of a core; the least of three, for the machine may be busy."""
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = workbench_command(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
        assert done.stdout.startswith("usage: workbench")
    assert min(costs) < 0.3


def test_help_imports_nothing_heavy() -> None:
    """The parser is made without MPI, torch, numpy or psutil."""
    code = (
        "import sys; from workbench.cli import main; main.parser().format_help();"
        "print({'mpi4py', 'torch', 'zmq', 'numpy', 'psutil', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=mpi.environment(1))
    assert done.stdout.strip() == "set()", done.stderr


def test_public_names_are_loaded_when_they_are_used() -> None:
    """``import workbench`` alone loads no numpy; each name of ``__all__`` is there, and a wrong one is an error."""
    code = (
        "import sys, workbench; early = 'numpy' in sys.modules;"
        "missing = [name for name in workbench.__all__ if not hasattr(workbench, name)];"
        "print(early, missing, set(workbench.__all__) <= set(dir(workbench)), hasattr(workbench, 'nonsense'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=mpi.environment(1))
    assert done.stdout.strip() == "False [] True False", done.stderr


@pytest.mark.parametrize("words", [["--version"], ["-v"], ["run", "-v"], ["run", "--version"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The version alone, as of horovodrun."""
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert (caught.value.code, capsys.readouterr().out) == (0, f"{workbench.__version__}\n")


# --- options ------------------------------------------------------------------------------------------


def test_every_option_of_horovodrun_is_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """No option of horovodrun is an error, and all stand in the help."""
    with pytest.raises(SystemExit):
        cli.main(["run", "--help-all"])
    told = capsys.readouterr().out
    for option in re.split(r"[|\n]", HOROVODRUN.strip()):
        if option not in ("-v", "--version"):
            assert parse(*option.split()).command == ["python"], option
        name = re.split("[ =]", option)[0]
        assert re.search(rf"(^|[\s,]){re.escape(name)}\b", told), option


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fusion-threshold-mb 32", {"HOROVOD_FUSION_THRESHOLD": str(32 << 20)}),
        ("--fusion-threshold-mb 0.5", {"HOROVOD_FUSION_THRESHOLD": str(1 << 19)}),
        ("--cycle-time-ms 2.5", {"HOROVOD_CYCLE_TIME": "2.5"}),
        ("--cache-capacity 0", {"HOROVOD_CACHE_CAPACITY": "0"}),
        ("--hierarchical-allreduce", {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}),
        ("--no-hierarchical-allgather", {"HOROVOD_HIERARCHICAL_ALLGATHER": "0"}),
        ("--timeline-filename t.json --timeline-mark-cycles",
         {"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}),
        ("--no-stall-check", {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        ("--stall-check-warning-time-seconds 5 --stall-check-shutdown-time-seconds 6",
         {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"}),
        ("--autotune --autotune-log-file a.csv --autotune-gaussian-process-noise 0.25",
         {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "a.csv", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.25"}),
        ("--log-level DEBUG --log-without-timestamp", {"HOROVOD_LOG_LEVEL": "DEBUG", "HOROVOD_LOG_HIDE_TIME": "1"}),
        ("--start-timeout 9", {"HOROVOD_START_TIMEOUT": "9"}),
        ("--gloo --verbose -H localhost:2", {}),
    ],
)  # fmt: skip
def test_options_become_horovods_variables(words: str, expected: dict[str, str]) -> None:
    """An option sets the variable that Horovod's launcher sets, in its unit, and nothing else."""
    assert variables(*words.split()) == expected


def test_an_option_wins_over_variables_of_both_names() -> None:
    """What was typed counts, also where a WORKBENCH variable, which wins over Horovod's, says otherwise."""
    env = {"WORKBENCH_CACHE_CAPACITY": "7", "HOROVOD_CACHE_CAPACITY": "8", "WORKBENCH_STALL_WARNING_S": "60"}
    assert config.settings(env).cache_capacity == 7
    found = config.settings(variables("--cache-capacity", "9", "--no-stall-check", **env))
    assert (found.cache_capacity, found.stall_warning_s) == (9, 0)
    untouched = config.settings(variables("--cycle-time-ms", "5", **env))
    assert (untouched.cache_capacity, untouched.stall_warning_s, untouched.fusion_window_s) == (7, 60, 0.005)


def test_every_option_without_effect_is_said_in_one_line() -> None:
    """Whoever gives an option that changes nothing reads so; for the others there is not a word."""
    silent = "--fusion-threshold-mb 1 --no-stall-check --timeline-filename t --start-timeout 3 --gloo --verbose"
    assert flags.warnings(parse(*silent.split())) == []
    for option in re.split(r"[|\n]", HOROVODRUN.strip()):
        if option in ("-v", "--version", "-cb", "--check-build", "--config-file f"):
            continue
        lines = flags.warnings(parse(*option.split()))
        name, *_ = re.split("[ =]", option)
        flag = next(flag for flag in flags.FLAGS if name in flag.names)
        changes_nothing = flag.idle or (flag.target in VARIABLES and not has_effect(flag.target))
        assert len(lines) == changes_nothing, option
        assert all(flag.names[-1] in line and "\n" not in line for line in lines)


def test_the_command_is_taken_as_it_is() -> None:
    """Options behind the command are the command's, and so is a ``--`` in it; one before it is not."""
    words = ["python", "-m", "train", "-np", "4", "--verbose", "--", "x"]
    for start in ([], ["--"]):
        args = cli.parser().parse_args(["run", "-np", "2", *start, *words])
        assert flags.command(args) == words
        assert (args.num_proc, args.verbose) == (2, None)


def test_a_file_gives_what_was_not_typed(tmp_path: Path) -> None:
    """A YAML file as horovodrun takes it: every section counts, and typed options win."""
    path = tmp_path / "options.yaml"
    path.write_text(
        "params: {fusion_threshold_mb: 16, cycle_time_ms: 3, hierarchical_allreduce: false}\n"
        "autotune: {enabled: true, log_file: a.csv}\ntimeline: {filename: t.json, mark_cycles: true}\n"
        "stall_check: {enabled: false, warning_time_seconds: 7}\nlibrary_options: {num_nccl_streams: 2}\n"
        "logging: {level: INFO, hide_timestamp: true}\ncontroller: gloo\nverbose: true\n"
    )
    args = parse("--cycle-time-ms", "9")
    flags.apply_file(args, str(path))
    assert with_flags({}, flags.variables(args)) == {
        "HOROVOD_FUSION_THRESHOLD": str(16 << 20),
        "HOROVOD_CYCLE_TIME": "9",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "a.csv",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_NUM_NCCL_STREAMS": "2",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "1",
    }
    assert (args.gloo, args.mpi, args.verbose) == (True, None, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params: {cycle_time: 3}", "no option 'cycle_time'"),
        ("elephants: 3", "no option 'elephants'"),
        ("controller: smoke", "no option 'smoke'"),
        ("params: {cycle_time_ms: fast}", "cycle_time_ms: 'fast' is not float"),
        ("params: {cache_capacity: true}", "cache_capacity: True is not int"),
        ("autotune: {enabled: 3}", "autotune: 3 is not bool"),
        ("logging: {level: LOUD}", "log_level: 'LOUD' is not TRACE or"),
        ("just words", "no sections"),
        ("params: 3", "params: 3 is no list of options"),
        ("timeline: [a]", "timeline: ['a'] is no list of options"),
        ("a: [", "cannot be read"),
    ],
)
def test_nonsense_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    """What is unknown, of the wrong type or no YAML is an error that says where and what."""
    path = tmp_path / "options.yaml"
    path.write_text(text)
    with pytest.raises(LaunchError, match=re.escape(message)) as caught:
        flags.apply_file(parse(), str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "2"], "no command"),
        (["true"], "How many ranks"),
        (["-np", "0", "true"], "How many ranks"),
        (["-np", "2", "--mpi", "--gloo", "true"], "exclude each other"),
        (["-np", "2", "-H", "localhost:1", "true"], "2 ranks do not fit the 1 slots"),
        (["-np", "2", "-H", "localhost:1,localhost:1", "true"], "localhost: named twice"),
        (["-np", "2", "-H", "localhost:1,no-such-host.invalid:1", "true"], "no-such-host.invalid: "),
        (["-np", "2", "-H", "one two", "true"], "is not a host"),
        (["-np", "2", "--hostfile", "/no/such/file", "true"], "cannot be read"),
        (["-np", "2", "--min-np", "3", "--max-np", "2", "true"], "each must be at least 1, and no smaller"),
        (["-np", "2", "--min-np", "3", "true"], "--min-np 3, but there are 2 slots (localhost:2), and no other hosts"),
        (["-H", "localhost:1", "--min-np", "2", "true"], "--min-np 2, but there is 1 slot (localhost:1), and"),
        (["-np", "2", "--min-np", "0", "true"], "each must be at least 1"),
        (["-np", "3", "--max-np", "2", "true"], "--min-np 3, -np 3, --max-np 2"),
        (["-np", "2", "--min-np", "1", "--mpi", "true"], "mpiexec ends all ranks when one is lost"),
        (["-np", "2", "--min-np", "1", "--reset-limit", "-1", "true"], "is not negative"),
        (["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "5", "1", "true"], "first the shorter"),
        (["--host-discovery-script", "/no/such", "true"], "Is it executable, and its path right?"),
        (["--host-discovery-script", "echo a", "-H", "b", "true"], "Name the hosts in one way"),
        (["-np", "3", "--host-discovery-script", "echo localhost:2", "true"], "3 ranks do not fit the 2 slots"),
        (["-np", "2", "--config-file", "/no/such/file", "true"], "cannot be read"),
        (["-np", "2", "--mpi-args", '"', "true"], "--mpi-args '\"' cannot be split into words"),
        (["-np", "2", "no-such-program"], "no program 'no-such-program'"),
        (["-np", "9" * 20, "true"], "open files"),
        (["-np", "2", "--hostfile", os.devnull, "true"], f"The host file {os.devnull} names no host"),
        (["-np", "2", "--hostfile", sys.executable, "true"], f"The host file {sys.executable} is not text"),
        (["-np", "2", "--config-file", sys.executable, "true"], f"{sys.executable} cannot be read"),
        (["-np", "2", "-H", "../a:2", "true"], "'../a:2' is not a host"),
        (["-np", "2", "--hosts=-oProxyCommand=date:2", "true"], "'-oProxyCommand=date:2' is not a host"),
        (["-np", "2", "-H", f"{'a' * 300}:2", "true"], "File name too long"),
        (["-np", "2", "--report", "a.html", "--measured", "a" * 300, "true"], "File name too long"),
        (["-np", "2", "--report", "a.html", "--measured", __file__, "true"], "is no measurement"),
    ],
)
def test_wrong_words_are_one_clear_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be run is said in one line, with exit code 1 and no traceback; nothing is started."""
    assert cli.main(["run", *words]) == 1
    told = capsys.readouterr()
    assert message in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["slurm", "--name", "a\ndate", "x.sbatch", "true"], "'--job-name=a\\ndate' has more than one line"),
        (["convert", CONVERTED, "-o", "none/x.py"], "none/x.py cannot be written: No such file or directory.\n"),
        (["demo", "--output", "."], "--output . is a folder"),
    ],
)
def test_wrong_words_of_other_commands(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is begun or written."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 1
    assert said in capsys.readouterr().err
    assert not os.listdir()


@pytest.mark.process
@pytest.mark.parametrize("words", [["report", "a.html"], once_more(["env"]), once_more(["run", "--help-all"])])
def test_output_that_cannot_be_written_is_no_traceback(words: list[str], tmp_path: Path) -> None:
    """On a full disk one line and exit code 1, where nobody reads no word and 141, of what is loaded later, too."""
    (tmp_path / "a.html").write_text(html([], ["python"]), encoding="utf-8")
    unread, pipe = os.pipe()
    os.close(unread)
    for output, code, said in ((os.open("/dev/full", os.O_WRONLY), 1, b"No space left on device"), (pipe, 141, b"")):
        done = subprocess.run([*CLI, *words], stdout=output, stderr=subprocess.PIPE, cwd=tmp_path, check=False)
        os.close(output)
        assert done.returncode == code
        assert len(done.stderr.splitlines()) == len(said.splitlines())
        assert said in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["slurm", "mine.py", "true"],
        ["k8s", "mpijob", "--image", "a:1", "--output", "mine.py", "--", "true"],
        ["convert", "--in-place", "mine.py"],
        ["grade", "--as-root", "--csv", "mine.py", "none.ipynb"],
    ],
)
def test_a_full_disk_takes_no_file(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is written over another file leaves it where there is no room, and says so."""
    monkeypatch.chdir(tmp_path)
    mine = shutil.copy(CONVERTED, "mine.py")
    before, soft = Path(mine).read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, soft[1]))
    try:
        assert cli.main(words) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    assert "mine.py cannot be written" in capsys.readouterr().err
    assert Path(mine).read_bytes() == before
    assert os.listdir() == ["mine.py"]


def test_options_and_variables_that_contradict_each_other_are_refused() -> None:
    """MPI by option and Gloo by variable would give worlds of one rank each: an error, and so is the reverse."""
    assert starters.choose(None, None, {}) == "auto"
    assert starters.choose(True, None, {"WORKBENCH_BACKEND": "mpi"}) == "mpi"
    assert starters.choose(None, None, {"HOROVOD_CPU_OPERATIONS": "gloo"}) == "gloo"
    for use_mpi, backend in ((True, "gloo"), (False, "mpi")):
        with pytest.raises(LaunchError, match="exclude each other"):
            starters.choose(use_mpi, not use_mpi, {"WORKBENCH_BACKEND": backend})


# --- hosts --------------------------------------------------------------------------------------------


def test_hosts_and_slots(tmp_path: Path) -> None:
    """The two ways to write hosts say the same; where no slots are given there is one."""
    path = tmp_path / "hosts"
    path.write_text("# ours\nlocalhost slots=2\n127.0.0.1:3  # a comment\n\nnode7\n")
    assert hosts.read(str(path)) == hosts.parse("localhost:2, 127.0.0.1:3,node7:1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[fd00::1]:2", ("fd00::1", 2)),
        ("[fd00::1]", ("fd00::1", 1)),
        ("fd00::1", ("fd00::1", 1)),
        ("fd00::1 slots=3", ("fd00::1", 3)),
        ("node7 slots=2 max_slots=4", ("node7", 2)),
        ("node7 max-slots=4 slots = 2", ("node7", 2)),
        ("node7 max_slots=4", ("node7", 1)),
    ],
)
def test_every_way_to_write_a_host(text: str, found: tuple[str, int], tmp_path: Path) -> None:
    """IPv6 addresses, with brackets where slots follow a colon; and MPI's words in a file."""
    path = tmp_path / "hosts"
    path.write_text(f"\n{text}\n")
    assert hosts.read(str(path)) == hosts.parse(text) == [found]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node7 slots two", "'node7 slots two' is not a host: write name:slots"),
        ("node7 slots=0", "'node7 slots=0' has 0 slots, so no rank can start there"),
        ("[node7]:2", "'[node7]:2' is not a host"),
    ],
)
def test_what_is_no_host_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    """Nothing is dropped silently."""
    path = tmp_path / "hosts"
    path.write_text(f"localhost:2\n{text}\n")
    with pytest.raises(LaunchError, match=re.escape(f"{path}, line 2: {said}")):
        hosts.read(str(path))


def test_options_of_other_programs_may_begin_like_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--sbatch "--array=0-2"``, as a shell hands it over; the ranks' own command is left as it is."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["slurm", "--sbatch", "--array=0-2", "job.sbatch", "true", "--sbatch", "--x"]) == 0
    text = (tmp_path / "job.sbatch").read_text()
    assert "#SBATCH --array=0-2\n" in text
    assert text.endswith("workbench run -np 1 true --sbatch --x\n")
    assert cli.parsed(["run", "-np", "2", "--mpi-args", "-v", "true"]).mpi_args == "-v"
    assert cli.parsed(["run", "-np", "2", "prog", "--mpi-args", "-v"]).command == ["prog", "--mpi-args", "-v"]


def test_help_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where an option behind it has to be read twice."""
    with pytest.raises(SystemExit):
        cli.parsed(["run", "--help", "--mpi-args", "-v", "true"])
    assert capsys.readouterr().out.count("usage:") == 1


@pytest.mark.parametrize("first", ["#!/bin/sh\n", ""], ids=["with #!", "without"])
def test_a_script_prints_hosts(first: str, tmp_path: Path) -> None:
    """Its lines are hosts, with the slots that are given for those without; without #! a shell reads it."""
    script = tmp_path / "discover"
    script.write_text(f"{first}echo a warning >&2; echo node1:4; echo; echo $1\n")
    script.chmod(0o755)
    assert hosts.discover(f"{script} node2", slots=3) == [("node1", 4), ("node2", 3)]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("/no/such/script", "No such file or directory"),
        ("", "is empty"),
        ("sh -c 'echo localhost:2; echo no inventory >&2; exit 3'", "exit code 3: no inventory"),
        ("echo these are words", "'these are words' is not a host"),
        ("true", "printed no host"),
        ("sh -c 'sleep 4242; true'", "had not ended after 0.5 s"),
    ],
)
def test_a_script_that_prints_no_hosts(script: str, said: str) -> None:
    """The script and its fault are named, and nothing of it is left running."""
    with pytest.raises(LaunchError, match=re.escape(said)):
        hosts.discover(script, limit_s=0.5 if "sleep" in script else 30.0)
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "4242"]]


def test_names_of_this_machine_are_known() -> None:
    """Its names and addresses are this machine; an address of nobody is not."""
    assert all(hosts.is_here(name) for name in ("localhost", "127.0.0.1", "127.0.0.2", socket.gethostname()))
    assert not hosts.is_here("192.0.2.1")
    hosts.check([("localhost", 2), ("127.0.0.1", 2)], 4)
    hosts.check([], 100)


# --- check-build --------------------------------------------------------------------------------------

LAYOUT = """\
workbench v{}:

Available Frameworks:
    [.] TensorFlow
    [.] PyTorch
    [.] MXNet
    [.] JAX

Available Controllers:
    [.] MPI
    [.] Gloo

Available Tensor Operations:
    [.] NCCL
    [.] DDL
    [.] CCL
    [.] MPI
    [.] Gloo
"""


def test_check_build_is_horovodruns_and_true() -> None:
    """The layout is horovodrun's to the letter, with JAX besides, and each mark is what trying it out gives."""
    done = workbench_command("run", "--check-build")
    assert (done.returncode, done.stderr) == (0, "")
    pattern = re.escape(LAYOUT.format(workbench.__version__)).replace(r"\[\.\]", r"\[[ X]\]")
    assert re.fullmatch(pattern, done.stdout)
    marks = dict(zip(re.findall(r"\] (\w+)", done.stdout), re.findall(r"\[(.)\]", done.stdout), strict=True))
    assert marks["PyTorch"] == ("X" if find_spec("torch") else " ")
    assert marks["Gloo"] == "X", "ranks can do without MPI"
    assert marks["MPI"] == ("X" if check_build.has_mpi() else " ")
    assert (marks["DDL"], marks["CCL"]) == (" ", " ")


@pytest.mark.parametrize("words", [["run", "-cb"], ["run", "--check-build"], ["check-build"]])
def test_check_build_needs_no_ranks(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ways to ask for it print the same report, without ``-np`` or a command."""
    monkeypatch.setattr(check_build, "report", lambda: "the report")
    assert cli.main(words) == 0
    assert capsys.readouterr().out == "the report\n"


def test_check_build_believes_nothing_that_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework without our module, a package that fails at import, and an mpiexec of another vendor get no mark."""
    monkeypatch.setattr(check_build, "find_spec", lambda name: None if name == "workbench.torch" else object())
    assert not check_build.has_framework("torch")
    assert not check_build._works("anything", "import no_such_module")
    monkeypatch.setattr(mpi, "candidates", list)
    assert not check_build.has_mpi()


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "import os; os.kill(os.getpid(), 11)"])
def test_check_build_does_not_take_silence_for_a_no(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """A question without an answer in time, and one whose process crashed: a question mark, and what it means."""
    monkeypatch.setattr(check_build, "_ASK_NCCL", code)
    monkeypatch.setattr(check_build, "_ASK_TIMEOUT_S", 0.5)
    nccl = ("cupy", "workbench.transport.gpu.nccl")
    monkeypatch.setattr(check_build, "find_spec", lambda name: object() if name in nccl else None)

    def late() -> str:
        try:
            raise LaunchError("python cannot be run") from subprocess.TimeoutExpired("python", 0.5)
        except LaunchError as error:
            raise LaunchError("mpi4py does not load") from error

    monkeypatch.setattr(mpi, "find_mpiexec", late)
    text = check_build.report()
    assert (text.count("[?] NCCL"), text.count("[?] MPI")) == (1, 2)
    assert "[ ] DDL" in text
    assert "[?]: not known" in text


# --- who ends when ------------------------------------------------------------------------------------


def signals_of(ending: Ending, until_s: float) -> list[tuple[float, int]]:
    """What the running ranks get, looked at ten times a second from time 0."""
    found = []
    for tick in range(int(until_s * 10) + 1):
        found += [(tick / 10, number) for number in ending.due(tick / 10)]
        if ending.over:
            found.append((tick / 10, SIGKILL))
            break
    return found


def test_a_failure_gives_the_others_time_to_say_why() -> None:
    """After the first failure the others have 5 s for themselves, get SIGTERM, and SIGKILL 3 s later."""
    ending = Ending(3)
    ending.ended(1, 7, 0.0)
    ending.ended(0, 1, 2.0)  # a second one does not begin anew
    assert signals_of(ending, 60) == [(5.0, SIGTERM), (8.0, SIGKILL)]
    assert ending.failed == [1, 0]
    assert ending.exit_code(culprit=1) == 7


def test_ctrl_c_leaves_time_to_save_and_a_second_one_does_not() -> None:
    """Ctrl-C is passed on, with 30 s to save one's work; a second one kills at once. The exit code is 130."""
    ending = Ending(2)
    ending.signalled(SIGINT, 0.0)
    assert ending.due(0.0) == [SIGINT]
    ending.ended(0, -SIGINT, 0.5)
    assert ending.failed == []  # it was told to
    assert signals_of(ending, 60) == [(30.0, SIGTERM), (33.0, SIGKILL)]
    again = Ending(2)
    again.signalled(SIGINT, 0.0)
    again.signalled(SIGINT, 1.0)
    assert signals_of(again, 60) == [(1.0, SIGKILL)]
    assert again.exit_code(None) == 130


@pytest.mark.parametrize(("number", "code"), [(SIGTERM, 143), (SIGHUP, 129)])
def test_a_request_to_end_becomes_sigterm(number: int, code: int) -> None:
    """SIGTERM and SIGHUP: the ranks get SIGTERM at once and SIGKILL after 5 s."""
    ending = Ending(2)
    ending.signalled(number, 0.0)
    assert signals_of(ending, 60) == [(0.0, SIGTERM), (5.0, SIGKILL)]
    assert ending.exit_code(None) == code


EVENTS = st.one_of(
    st.tuples(st.just("ended"), st.integers(0, 3), st.sampled_from([0, 1, 3, -9, -11])),
    st.tuples(st.just("signalled"), st.sampled_from([SIGINT, SIGTERM, SIGHUP])),
    st.tuples(st.just("late")),
)


@check(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), EVENTS), max_size=12))
def test_every_job_with_a_failure_ends(story: list[tuple[float, tuple[str, ...]]]) -> None:
    """Whatever happens and in whatever order: after a failure or a signal all is over 33 s later at most."""
    ending, now, ended = Ending(4), 0.0, set()
    for pause, (what, *details) in story:
        now += pause
        if what == "ended" and details[0] in ending.running and not ending.over:
            ending.ended(*details, now)
            ended.add(details[0])
        elif what == "signalled":
            ending.signalled(*details, now)
        elif what == "late":
            ending.out_of_time(now)
        ending.due(now)
    wanted = ending.failed or ending.asked or ending.late
    ending.due(now + 33.1)
    assert ending.over == bool(wanted or len(ended) == 4)
    assert ending.running == {0, 1, 2, 3} - ended
    assert 0 <= ending.exit_code(next(iter(ending.failed), None)) < 256


# --- lines --------------------------------------------------------------------------------------------

TEXT = st.text("ab\r\n", max_size=30).map(str.encode)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """The same bytes in pieces."""
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@check(deadline=None)
@given(TEXT, st.lists(st.integers(0, 30), max_size=6))
def test_lines_do_not_depend_on_how_they_arrive(data: bytes, places: list[int]) -> None:
    """However the bytes are cut, the same lines come out, each with one end, and not a byte is lost."""
    lines = Lines()
    found = [lines.feed(piece) for piece in cut(data, places)]
    rest = lines.rest()
    assert b"".join([*found, rest]) == data
    assert [line for each in [*found, rest] for line in each.splitlines(keepends=True)] == data.splitlines(
        keepends=True
    )


def printed(story: Sequence[tuple[int, str, bytes]], **options: object) -> tuple[list[str], Printer]:
    """The lines on one screen, after ranks wrote this."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    printer = Printer(screen, screen, 3, **options)  # type: ignore[arg-type]
    for rank, stream, data in story:
        printer.feed(rank, stream, data)
    for rank in range(3):
        for stream in ("stdout", "stderr"):
            printer.feed(rank, stream, b"")
    printer.close()
    assert isinstance(screen.buffer, io.BytesIO)
    return screen.buffer.getvalue().decode().splitlines(), printer


@check(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["stdout", "stderr"]), TEXT.filter(len)), max_size=15))
def test_lines_of_different_ranks_never_mix(story: list[tuple[int, str, bytes]]) -> None:
    r"""Every line on the screen has one prefix, and the lines behind a prefix are those that its rank wrote.

    Of a line that was written over, what stood there last.
    """
    screen, _ = printed(story)
    for rank in range(3):
        for stream in ("stdout", "stderr"):
            wrote = b"".join(data for who, where, data in story if (who, where) == (rank, stream))
            prefix = f"[{rank}]<{stream}>:"
            shown = [line.removeprefix(prefix) for line in screen if line.startswith(prefix)]
            lines = [([part for part in line.split("\r") if part] or [""])[-1] for line in wrote.decode().split("\n")]
            lines = lines if lines[-1] else lines[:-1]
            assert shown in (lines, [*lines, ""])  # an empty one for a \r at the very end
    assert all(re.match(r"\[[012]\]<std(out|err)>:[ab]*$", line) or not line for line in screen)


def test_files_hold_what_each_rank_wrote(tmp_path: Path) -> None:
    """With a folder, ``rank.N/stdout`` and ``stderr`` hold each rank's bytes; timestamps stand before the prefix."""
    story = [(0, "stdout", b"one\ntw"), (1, "stderr", b"\xff\n"), (0, "stdout", b"o\n")]
    screen, _ = printed([(0, "stdout", b"x\n")], timestamps=True)
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:x", screen[0])
    out = io.StringIO()  # a notebook's stream takes text only
    printer = Printer(out, out, 11, folder=str(tmp_path))
    for each in story:
        printer.feed(*each)
    printer.close()
    assert (tmp_path / "rank.00" / "stdout").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "rank.01" / "stderr").read_bytes() == b"\xff\n"
    assert (tmp_path / "rank.10" / "stdout").read_bytes() == b""
    assert out.getvalue() == "[0]<stdout>:one\n[1]<stderr>:\ufffd\n[0]<stdout>:two\n"


def test_a_file_that_nobody_reads_is_given_up(tmp_path: Path) -> None:
    """A rank's file may be a pipe: when its reader is gone, this is said once, and the rest is written on."""
    pipe = tmp_path / "rank.0" / "stdout"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    out, err = io.StringIO(), io.StringIO()
    printer = Printer(out, err, 1, folder=str(tmp_path))
    printer.feed(0, "stdout", b"one\n")
    printer.flush()
    assert os.read(reader, 100) == b"one\n"
    os.close(reader)
    for _ in range(2):
        printer.feed(0, "stdout", b"two\n")
        printer.feed(0, "stderr", b"three\n")
        printer.flush()
    printer.close()
    assert out.getvalue() == "[0]<stdout>:one\n" + 2 * "[0]<stdout>:two\n"
    assert err.getvalue().count("workbench: ") == err.getvalue().count(f"{pipe} cannot be written: Broken pipe") == 1
    assert (tmp_path / "rank.0" / "stderr").read_text() == 2 * "three\n"


def trace(of: str) -> list[bytes]:
    """What a failing Python prints."""
    try:
        exec(of)
    except Exception:  # noqa: BLE001
        import traceback

        return traceback.format_exc().encode().splitlines(keepends=True)
    return []


def test_the_last_traceback_is_found_with_what_led_to_it() -> None:
    """A chain of exceptions is one traceback, an earlier one is not part of it; without one, fifteen lines."""
    chained = trace("try: 1 / 0\nexcept Exception: raise ValueError('two\\nlines')")
    assert sum(b"Traceback" in line for line in chained) == 2
    assert last_traceback([*trace("[][1]"), b"epoch 2\n", *chained, b"workbench: bye\n"]) == chained
    assert last_traceback([b"%d\n" % i for i in range(30)]) == [b"%d\n" % i for i in range(15, 30)]
    assert last_traceback([]) == []


def test_a_rank_that_only_follows_is_known() -> None:
    """A rank whose error says that another rank failed is not the culprit; its last words are its own."""
    story = [
        (0, "stderr", b"workbench.errors.RankFailedError: Rank 1 raised an exception. Its traceback:\nTraceback ...\n"),
        (1, "stderr", b"".join(trace("[][1]"))),
        (2, "stdout", b"workbench.errors.RankFailedError\n"),
    ]
    _, printer = printed(story)
    assert [printer.follows(rank) for rank in range(3)] == [True, False, False]
    assert printer.last_words(1).endswith("IndexError: list index out of range")


# --- what ranks are given -----------------------------------------------------------------------------


def test_the_environment_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share the cores, output is not held back, this Python comes first, no other launcher is heard."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PMI_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMPI_MCA_btl", "self")
    monkeypatch.setenv("PATH", "/usr/bin")
    env = starters.environment(2)
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == str(max(1, mpi.usable_cores() // 2))
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert config.launch(env) == config.Launch("none")
    assert env["OMPI_MCA_btl"] == "self"
    assert "TORCHELASTIC_RUN_ID" not in env


def test_chosen_threads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS, from the environment or given, counts for all libraries that were not told otherwise."""
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    env = starters.environment(2)
    assert env["OMP_NUM_THREADS"] == "5"
    assert "MKL_NUM_THREADS" not in env
    assert starters.environment(2, env={"OMP_NUM_THREADS": "6", "MINE": "x"})["OMP_NUM_THREADS"] == "6"
    assert starters.environment(2, env={"MINE": "x"})["MINE"] == "x"


def test_without_mpi_the_ranks_are_plain_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no mpiexec fits there is one process per rank with torchrun's variables, and one line says why."""
    monkeypatch.setattr(mpi, "candidates", list)
    said: list[str] = []
    task = starters.JobSpec(3, ["python", "x.py"], {})
    assert starters.mpiexec(task, said.append) == []
    assert len(said) == 1
    assert "no mpiexec" in said[0]
    common = starters.rendezvous(task, tmp_path) | starters.torch_variables()
    for rank in range(3):
        launch = config.launch(starters.launcher_variables(rank, 3, rank, 3) | common)
        assert (launch.launcher, launch.rank, launch.size, launch.local_rank, launch.local_size) == (
            "torchrun", rank, 3, rank, 3,
        )  # fmt: skip
        assert launch.address == "127.0.0.1"
    with pytest.raises(LaunchError, match="no mpiexec"):
        starters.mpiexec(starters.JobSpec(3, ["python"], {}, starter="mpi"), said.append)


def test_ranks_without_mpi_have_a_secret_and_a_private_place(tmp_path: Path) -> None:
    """Each job its own, in the environment; another launcher's is not handed on."""
    found = [starters.rendezvous(starters.JobSpec(2, ["python"], {}, starter="gloo"), tmp_path) for _ in range(2)]
    assert config.secret(found[0]) != config.secret(found[1])
    ranks = starters.launcher_variables(0, 2, 0, 2) | starters.torch_variables() | found[0]
    assert config.launch(ranks).file == str(tmp_path / starters.RENDEZVOUS_FILE)
    assert not {"WORKBENCH_SECRET", "WORKBENCH_RENDEZVOUS_FILE"} & starters.environment(2, env=ranks).keys()


@pytest.mark.parametrize("name", ["WORKBENCH_BACKEND", "HOROVOD_CPU_OPERATIONS"])
def test_shared_memory_goes_with_both_launchers(tmp_path: Path, name: str) -> None:
    """It is no launcher: only MPI contradicts --gloo, and Gloo --mpi. The ranks hear that it is wanted."""
    env = {name: "shm"}
    assert starters.choose(None, True, env) == "gloo"
    assert starters.choose(True, None, env) == "mpi"
    assert starters.choose(None, None, env) == "auto"
    told = starters.rendezvous(starters.JobSpec(1, ["python"], env, starter="gloo"), tmp_path)
    assert config.settings(env | told).backend == "shm"
    for wrong, use_mpi in (("gloo", True), ("mpi", False)):
        with pytest.raises(LaunchError, match="exclude each other"):
            starters.choose(use_mpi, not use_mpi, {name: wrong})


def test_free_ports_are_free() -> None:
    """A port that somebody listens at is not given."""
    port = starters.free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert port not in {starters.free_port() for _ in range(50)}
