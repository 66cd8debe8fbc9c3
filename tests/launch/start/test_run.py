"""``workbench run`` and ``workbench.run`` on real processes: what comes out, how they end, and that nothing stays."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import jupyter_client
import numpy
import psutil
import pytest
from running import eventually, open_to_others
from thorough import once_more

from workbench.errors import DeadlineError, LaunchError, PeerLostError, RankFailedError
from workbench.launch.function import run
from workbench.launch.start import mpi

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

MARK = "WORKBENCH_TEST_RUN"
# Where mpiexec has more to do than we.
BY_MPI = pytest.mark.parametrize("way", ["--mpi", once_more("--gloo")])
# Of the launcher's own part, which is the same for both.
ONE_WAY = pytest.mark.parametrize("way", ["--gloo", once_more("--mpi")])

WHO = """
from workbench import config
rank, n = config.launch().rank, config.launch().size
"""
# Says that it runs, and waits to be ended.
WAITS = WHO + "print('ready')\nimport time\ntime.sleep(60)\n"


class Launcher:
    """A command in a process of its own, with its output in files, and all that it starts marked."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.mark = uuid.uuid4().hex
        self._out, self._err = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env=mpi.environment(1) | {MARK: self.mark},
            )
        self._begun = time.monotonic()

    @property
    def out(self) -> str:
        """What it wrote to stdout so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What it wrote to stderr so far."""
        return self._err.read_text()

    def ready(self, n: int, word: str = "ready") -> None:
        """Wait until ``n`` ranks have printed the word."""
        assert eventually(lambda: self.out.count(f":{word}\n") >= n), self.out + self.err

    def send(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        self.process.send_signal(number)

    def finish(self, within_s: float = 50.0) -> tuple[int, float]:
        """Its exit code, and for how long it went on from this call."""
        begun = time.monotonic()
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not over after {within_s} s\n{self.out}{self.err}", pytrace=False)
        return code, time.monotonic() - begun

    def left(self) -> list[psutil.Process]:
        """What it started and still lives."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def shared_memory(self) -> set[str]:
        """The files of MPI's shared memory that its processes have open."""
        maps = []
        for process in self.left():
            with contextlib.suppress(OSError):
                maps.append(Path(f"/proc/{process.pid}/maps").read_text())
        return set(re.findall(r"/dev/shm/\S+", "".join(maps)))

    def gone(self) -> bool:
        """Is nothing left, at the latest a moment later?"""
        return eventually(lambda: not self.left(), 40.0)


Start = Callable[..., Launcher]
Children = Callable[[], list[psutil.Process]]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Start]:
    """``launch("-np", "2", script=text)`` starts ``workbench run -np 2 python <text>``."""
    started: list[Launcher] = []

    def start(
        *words: str, script: str = "", command: list[str] | None = None, head: list[str] | None = None
    ) -> Launcher:
        path = tmp_path / f"script{len(started)}.py"
        path.write_text(script)
        first = head or [sys.executable, "-m", "workbench.cli.main", "run"]
        started.append(Launcher(tmp_path, [*first, *words, *(command or ["python", str(path)])]))
        return started[-1]

    yield start
    for launcher in started:
        for process in [*launcher.left(), psutil.Process(launcher.process.pid)] if launcher.left() else []:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            launcher.process.kill()
        launcher.process.wait()


def numbers(text: str) -> set[int]:
    """Those of "0,2-4": a traceback that several ranks print is shown once."""
    spans = [each.partition("-") for each in text.split(",")]
    return {rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)}


def lines_of(text: str, rank: int, stream: str = "stdout") -> list[str]:
    """The lines that one rank wrote; without what a script is told that never calls init()."""
    found = re.findall(rf"^\[([\d,-]+)\]<{stream}>:(.*)$", text, re.MULTILINE)
    lines = [line for who, line in found if rank in numbers(who)]
    return [line for line in lines if not line.startswith("workbench: this script has ended without init()")]


# --- what comes out -----------------------------------------------------------------------------------


@BY_MPI
def test_ranks_are_one_job(launch: Start, way: str, tmp_path: Path) -> None:
    """The ranks know their numbers and reduce; each line has its rank; there is no input; nothing stays."""
    script = """
    import os, sys, numpy as np, workbench as hvd
    hvd.init()
    total = hvd.allreduce(np.ones(2), op=hvd.Sum)[0]
    print(hvd.rank(), hvd.size(), hvd.local_rank(), total, repr(sys.stdin.read()), os.getcwd(), sys.argv[1:])
    print("bad news", file=sys.stderr)
    """
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(script))
    job = launch("-np", "2", way, command=["python", str(path), "--lr", "0.1"])
    code, _ = job.finish()
    assert code == 0, job.err
    for rank in range(2):
        assert lines_of(job.out, rank) == [f"{rank} 2 {rank} 2.0 '' {tmp_path} ['--lr', '0.1']"]
        assert lines_of(job.err, rank, "stderr") == ["bad news"]
    assert len(job.out.splitlines()) == 2
    assert job.gone()


@ONE_WAY
def test_lines_stay_whole(launch: Start, way: str, tmp_path: Path) -> None:
    """Three ranks that print 1,000 lines each on both streams: every line is there, in order, behind its rank."""
    script = WHO + (
        "import sys\n"
        "for i in range(1000):\n"
        "    print(rank, i, 'x' * (i % 300))\n"
        "    sys.stderr.write(f'{rank} {i} ' + 'y' * (i % 77) + chr(10))\n"
        "sys.stdout.write('no end')\n"
    )
    job = launch("-np", "3", way, "--output-filename", str(tmp_path / "logs"), script=script)
    assert job.finish()[0] == 0, job.err[-2000:]
    for rank in range(3):
        expected = [f"{rank} {i} {'x' * (i % 300)}" for i in range(1000)]
        assert lines_of(job.out, rank) == [*expected, "no end"]
        assert (tmp_path / "logs" / f"rank.{rank}" / "stdout").read_text().splitlines() == [*expected, "no end"]
        assert lines_of(job.err, rank, "stderr") == [f"{rank} {i} {'y' * (i % 77)}" for i in range(1000)]
    assert len(job.out.splitlines()) == 3 * 1001
    # One line says that init() was not called.
    own = [line for line in job.err.splitlines() if not line.startswith("[0]<stderr>:workbench: ")]
    assert len(own) == 3 * 1000


def test_lines_come_at_once_with_the_time(launch: Start, tmp_path: Path) -> None:
    """A line is there while its rank still runs, though nobody flushed it; the time stands before it if wanted."""
    go = tmp_path / "go"
    script = f"import os, time\nprint('ready')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('end')\n"
    job = launch("-np", "2", "-prefix-timestamp", script=script)
    job.ready(2)
    assert "end" not in job.out
    assert re.match(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[[01]\]<stdout>:ready$", job.out.splitlines()[0])
    go.touch()
    assert job.finish()[0] == 0


@ONE_WAY
def test_hosts_of_a_batch_job_that_cannot_be_reached(launch: Start, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not passed over in silence: an error; whoever names this machine means it alone."""
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[03-04]")
    job = launch("-np", "2", way, command=["echo", "two words"])
    named = launch("-H", "localhost:2", way, command=["echo", "two words"])
    assert (job.finish()[0], named.finish()[0]) == (1, 0)
    assert (job.out.count("two words"), named.out.count("two words")) == (0, 2)
    assert re.search("gpu03: .*srun|-H localhost:2 starts", job.err, re.DOTALL), job.err
    assert not named.err


def test_two_names_of_this_machine_are_one_host(launch: Start) -> None:
    """``-H localhost:2,127.0.0.1:1``: local ranks would begin anew, and ranks would share GPUs; it is refused."""
    job = launch("-H", "localhost:2,127.0.0.1:1", script="import workbench")
    assert job.finish()[0] == 1
    assert "localhost and 127.0.0.1 are one machine, this one. Name it once, with all its slots." in job.err


@BY_MPI
def test_on_one_machine_no_port_is_open(launch: Start, way: str) -> None:
    """No process of a job, mpiexec and its helpers included, listens where another machine could reach it."""
    if way == "--mpi" and not mpi.forker(mpi.find_mpiexec()):
        pytest.skip("this MPI's mpiexec cannot but listen")
    script = "import workbench as hvd, numpy as np\nhvd.init(); hvd.allreduce(np.ones(4))\n"
    job = launch("-np", "2", way, script=script + "print('ready')\nimport time\ntime.sleep(60)\n")
    job.ready(2)
    assert len(job.left()) >= 2 + 2 + 1, "the launcher, mpiexec, supervisors and ranks were to be looked at"
    assert not open_to_others(job.left())


@BY_MPI
def test_a_large_environment_and_many_words_arrive(launch: Start, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of variables and of words reach each rank as they were, the odd ones, too."""
    odd = {"ODD_LINES": "a\nb", "ODD_LETTERS": "ä \udcff", "ODD_EMPTY": "", "ODD_LONG": "x" * 100_000}
    for name, text in (odd | {f"MANY_{i}": str(i) for i in range(500)}).items():
        monkeypatch.setenv(name, text)
    words = [*(str(i) for i in range(600)), "", "two words", "-n", "ä"]
    script = f"""
    import os, sys
    assert sys.argv[1:] == {words!r}, sys.argv
    assert {odd!r}.items() <= os.environ.items()
    assert sum(name.startswith("MANY_") for name in os.environ) == 500
    print("ready")
    """
    job = launch("-np", "2", way, command=["python", "-c", textwrap.dedent(script), *words])
    assert job.finish()[0] == 0, job.err[-2000:]
    assert sorted(job.out.splitlines()) == ["[0]<stdout>:ready", "[1]<stdout>:ready"]


def test_nobody_reads_any_more(launch: Start, tmp_path: Path) -> None:
    """``workbench run … | head -1`` ends soon, without a complaint from Python, and nothing stays."""
    path = tmp_path / "endless.py"
    path.write_text("import time\nwhile True: print('again'); time.sleep(0.01)\n")
    line = f"{sys.executable} -m workbench.cli.main run -np 2 --gloo python {path} | head -n 1"
    job = launch(head=["bash", "-c", line], command=[""])
    assert job.finish()[0] == 0
    assert re.fullmatch(r"\[(0|1|0-1)\]<stdout>:again\n", job.out)
    assert job.gone()
    assert "Exception ignored" not in job.err
    assert "Traceback (most recent call last)" not in re.sub(r"\[(?:0|1|0-1)\]<stderr>:.*", "", job.err)


def test_a_line_is_shown_before_it_ends(launch: Start, tmp_path: Path) -> None:
    """A prompt is there while its rank waits, and the line goes on where it was left."""
    go = tmp_path / "go"
    script = f"import os, time\nprint('ready', end='')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    job = launch("-np", "1", script=script + "print(' and over')\n")
    assert eventually(lambda: job.out == "[0]<stdout>:ready"), job.out + job.err
    go.touch()
    assert job.finish()[0] == 0, job.err
    assert job.out == "[0]<stdout>:ready and over\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'x' * 65536", ()),
        once_more("'y\\n' * 32768", ("--min-np", "1")),
        once_more("chr(13).join(map(str, range(9999))) + chr(10)", ()),
    ],
)
def test_a_signal_ends_a_job_whose_output_nobody_takes(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    """``| less``, a stopped terminal: ranks print for ever, their launcher cannot, and SIGTERM still ends it."""
    script = tmp_path / "endless.py"
    script.write_text(f"import sys\nwhile True: sys.stdout.write({text})\n")
    command = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", *words, "python", str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=mpi.environment(1), cwd=tmp_path) as job:
        assert job.stdout is not None
        full = select.poll()
        full.register(job.stdout, select.POLLIN)
        assert full.poll(30_000)  # it has begun to print
        job.send_signal(signal.SIGTERM)
        assert job.wait(30) == 143


def test_without_an_output_the_job_runs(launch: Start, tmp_path: Path) -> None:
    """``>&-`` and ``2>&-``: what would be printed is lost, no file of the launcher takes its place, no traceback."""
    script = f"from pathlib import Path\nprint('lost')\nPath({str(tmp_path)!r}, 'ran').touch()\n"
    (tmp_path / "script.py").write_text(script)
    line = f"{sys.executable} -m workbench.cli.main run -np 1 python script.py"
    job = launch(head=["bash", "-c", f"exec {line} <&- >&- 2>&-"], command=[""])
    assert job.finish()[0] == 0, job.err
    assert "Traceback" not in job.err
    assert (tmp_path / "ran").exists()


def test_a_deleted_working_directory_is_said(launch: Start) -> None:
    """In a sentence, with what to do."""
    line = f"mkdir gone && cd gone && rmdir ../gone && exec {sys.executable} -m workbench.cli.main run -np 1 true"
    job = launch(head=["bash", "-c", line], command=[""])
    assert job.finish()[0] == 1
    assert job.err.startswith("workbench: The working directory cannot be used")
    assert "Traceback" not in job.err


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
# Prints for a while, and says in a file that it came to its end.
CHATTERS = (
    WHO
    + """
import os, sys, time
for i in range(50):
    print("step", i)
    print("note", i, file=sys.stderr)
    time.sleep(0.01)
open(f"ended{rank}", "w").close()
"""
)


@FULL
@ONE_WAY
def test_a_full_disk_for_a_ranks_file_costs_the_file_only(launch: Start, tmp_path: Path, way: str) -> None:
    """Where a rank's file takes nothing more, one line says so, and the job, the screen and other files go on."""
    for rank in (0, 1):
        (tmp_path / "out" / f"rank.{rank}").mkdir(parents=True)
    (tmp_path / "out" / "rank.0" / "stdout").symlink_to("/dev/full")
    (tmp_path / "out" / "rank.1" / "stderr").symlink_to("/dev/full")
    job = launch("-np", "2", way, "--output-filename", "out", script=CHATTERS)
    assert job.finish()[0] == 0, job.err
    assert all((tmp_path / f"ended{rank}").exists() for rank in (0, 1))
    assert all(len(lines_of(job.out, rank)) == len(lines_of(job.err, rank, "stderr")) == 50 for rank in (0, 1))
    (warning,) = [line for line in job.err.splitlines() if line.startswith("workbench: ")]
    assert re.search(r"out/rank\.[01]/std(out|err) cannot be written: No space left on device", warning)
    assert (tmp_path / "out" / "rank.1" / "stdout").read_text().splitlines() == [f"step {i}" for i in range(50)]
    assert "Traceback" not in job.err


@FULL
def test_a_full_disk_behind_the_launchers_own_output_does_not_end_the_job(launch: Start, tmp_path: Path) -> None:
    """``workbench run … >file`` on a full disk: the ranks come to their end, the other stream goes on."""
    (tmp_path / "chatters.py").write_text(CHATTERS)
    line = f"{sys.executable} -m workbench.cli.main run -np 2 --gloo python chatters.py >/dev/full"
    job = launch(head=["bash", "-c", line], command=[""])
    assert job.finish()[0] == 0, job.out + job.err
    assert all((tmp_path / f"ended{rank}").exists() for rank in (0, 1))
    assert len([line for line in job.err.splitlines() if "<stderr>:note" in line]) == 100
    said = [line for line in job.err.splitlines() if "<stderr>" not in line]
    assert len(said) == 1, said
    assert said[0].startswith("workbench: stdout cannot be written: No space left on device")


def test_files_that_cannot_be_made_are_said_before_the_start(launch: Start) -> None:
    """A folder for the ranks' files where there can be none is one clear line."""
    job = launch("-np", "2", "--output-dir", "/dev/null/out", script=CHATTERS)
    assert job.finish()[0] == 1
    assert re.fullmatch(r"workbench: --output-dir: /dev/null/out\S* cannot be written: Not a directory.*\n", job.err)


@ONE_WAY
def test_many_ranks_get_the_files_that_they_need(launch: Start, tmp_path: Path, way: str) -> None:
    """Where the soft limit of open files is too low for the job's pipes it is raised; the ranks do their work."""
    line = f"ulimit -Sn 64; {sys.executable} -m workbench.cli.main run -np 40 {way} --output-filename out echo hello"
    job = launch(head=["bash", "-c", line], command=[""])
    assert job.finish(60.0)[0] == 0, job.err
    assert job.out.count("hello") == 40
    assert len(list(tmp_path.glob("out/rank.*/stdout"))) == 40


@ONE_WAY
def test_too_few_files_for_the_ranks_are_said_before_the_start(launch: Start, way: str) -> None:
    """Where the hard limit is too low one line names the limit, the need and the command that raises it."""
    line = f"ulimit -n 64; {sys.executable} -m workbench.cli.main run -np 40 {way} echo hello"
    job = launch(head=["bash", "-c", line], command=[""])
    assert job.finish()[0] == 1
    assert re.fullmatch(r"workbench: 40 ranks need \d+ open files, .* 64 \(ulimit -Hn\).*ulimit -n \d+.*\n", job.err)
    assert not job.out


# --- a rank fails -------------------------------------------------------------------------------------


@BY_MPI
def test_a_failed_rank_ends_all_and_speaks_last(launch: Start, way: str) -> None:
    """The others say why they end, the culprit's traceback is the last thing to be read, the exit code is its own."""
    script = """
    import numpy as np, workbench as hvd
    hvd.init()
    if hvd.rank() == 1:
        try: [][0]
        except IndexError: raise ValueError("the cause")
    hvd.allreduce(np.ones(2), name="x")
    """
    n = 3 if way == "--mpi" else 2
    job = launch("-np", str(n), way, script=textwrap.dedent(script))
    code, _ = job.finish()
    assert code == 1, job.err
    for rank in {0, n - 1} - {1}:
        said = "\n".join(lines_of(job.err, rank, "stderr"))
        assert re.search(
            r"RankFailedError: Rank 1 raised[\s\S]*script0\.py\", line[\s\S]*ValueError: the cause", said
        ), job.err
    head, _, last = job.err.rpartition("workbench: ")
    assert head
    assert last.startswith("Rank 1 ended with exit code 1, which ends the job. Its last words:\nTraceback (most recent")
    assert "IndexError" in last
    assert last.endswith("\nValueError: the cause\n")
    assert job.gone()


def test_a_killed_rank_ends_all_even_those_that_will_not(launch: Start) -> None:
    """One rank is killed with -9, one has MPI and ignores SIGTERM: both are gone after some 8 s, with code 137."""
    script = WHO + textwrap.dedent("""
    import os, signal, time
    from mpi4py import MPI
    if rank == 0: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready")
    if rank == 1: time.sleep(0.3); os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    """)
    job = launch("-np", "2", "--mpi", script=script)
    job.ready(2)
    shared = job.shared_memory()
    code, seconds = job.finish()
    assert code == 137, job.err
    assert seconds > 7
    assert "Rank 1 was killed by SIGKILL (out of memory?), which ends the job." in job.err
    assert job.gone()
    assert not any(Path(path).exists() for path in shared)


def test_mpichs_mpiexec_leaves_no_file_when_it_is_killed(launch: Start) -> None:
    """MPICH's mpiexec writes the machine's topology into /tmp; killed with its ranks amid MPI it leaves nothing."""
    if mpi.mpiexec_vendor(mpi.find_mpiexec()) != "MPICH":
        pytest.skip("needs MPICH's mpiexec")
    files = Path("/tmp").glob
    before = set(files("hydra_hwloc_xmlfile_*"))
    job = launch("-np", "2", "--mpi-args", "-l", script="from mpi4py import MPI\n" + WAITS)
    job.ready(2)
    job.send(signal.SIGKILL)
    job.finish()
    assert job.gone()
    assert eventually(lambda: not set(files("hydra_hwloc_xmlfile_*")) - before)


def test_mpi_abort_keeps_its_code(launch: Start) -> None:
    """``MPI_Abort(7)`` ends all at once with exit code 7."""
    script = "from mpi4py import MPI\nimport time\nif MPI.COMM_WORLD.rank: MPI.COMM_WORLD.Abort(7)\ntime.sleep(60)\n"
    job = launch("-np", "2", "--mpi", script=script)
    code, _ = job.finish()
    assert code == 7, job.err
    assert job.gone()


def test_a_killed_mpiexec_ends_the_job(launch: Start) -> None:
    """When somebody kills mpiexec, the ranks do not stay behind, and the exit code says so."""
    job = launch("-np", "2", "--mpi", script=WAITS)
    job.ready(2)
    (mpiexec,) = [each for each in job.left() if Path(each.cmdline()[0]).name.startswith("mpiexec")]
    mpiexec.kill()
    code, _ = job.finish()
    assert code == 137, job.err
    assert "mpiexec ended" in job.err
    assert job.gone()


LOSES_ITS_SUPERVISOR = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getppid(), signal.SIGKILL)
while True:
    print("on and on", flush=True)
    time.sleep(0.01)
"""


def test_a_supervisor_is_killed(launch: Start) -> None:
    """Nobody would say how its rank ends: the job ends, though another rank prints all the time."""
    job = launch("-np", "2", "--gloo", script=LOSES_ITS_SUPERVISOR)
    code, _ = job.finish()
    assert code == 137, job.err
    assert "rank 1 ended with exit code -9 before its ranks" in job.err
    assert job.gone()


def test_what_cannot_start_says_why(launch: Start, tmp_path: Path) -> None:
    """An mpiexec that refuses, ranks that are late, a program that cannot be run: reasons are given, nothing stays."""
    refused = launch("-np", "2", "--mpi", "--mpi-args=--nonsense", script=WAITS)
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    broken = launch("-np", "2", command=[str(program)])
    assert refused.finish()[0] == 1
    assert "before its ranks had started" in refused.err
    assert "nonsense" in refused.err
    # On a busy machine both may start between two looks at them: then none was late.
    late = next(
        job for job in (launch("-np", "2", "--start-timeout", "0.001", script="") for _ in range(20)) if job.finish()[0]
    )
    assert late.finish()[0] == 1
    assert "did not start within 0.001 s" in late.err
    assert broken.finish()[0] == 127
    assert f"{program} cannot be run: No such file or directory" in broken.err
    assert all(job.gone() for job in (refused, late, broken))


# --- the launcher is told to end ----------------------------------------------------------------------


@ONE_WAY
def test_ctrl_c_is_a_keyboard_interrupt_in_each_rank(launch: Start, tmp_path: Path, way: str) -> None:
    """Ctrl-C once: each rank gets a KeyboardInterrupt and may clean up, also below a shell; the exit code is 130."""
    script = (
        WHO
        + "import time\ntry:\n    print('ready')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('saved')\n"
    )
    (tmp_path / "saves.py").write_text(script)
    job = launch("-np", "2", way, command=["sh", "-c", "python saves.py; exit 3"])
    job.ready(2)
    job.send(signal.SIGINT)
    code, _ = job.finish()
    assert code == 130, job.err
    assert sorted(job.out.splitlines()[-2:]) == ["[0]<stdout>:saved", "[1]<stdout>:saved"]
    assert job.err.splitlines()[-1] == "workbench: The job was ended by SIGINT."
    assert job.gone()


def test_ctrl_c_twice_kills(launch: Start) -> None:
    """A second Ctrl-C does not wait for ranks that will not end."""
    script = WAITS.replace(
        "time.sleep(60)", "try: time.sleep(60)\nexcept KeyboardInterrupt: print('no'); time.sleep(60)"
    )
    job = launch("-np", "2", script=script)
    job.ready(2)
    job.send(signal.SIGINT)
    job.ready(2, "no")
    job.send(signal.SIGINT)
    code, _ = job.finish()
    assert code == 130, job.err
    assert job.gone()


# A child that leaves its parent and its session, as daemons do.
DAEMON = "import os, time\nif not os.fork():\n    os.setsid(); os.fork() and os._exit(0); time.sleep(60)\n"


@pytest.mark.parametrize(
    ("way", "number"),
    [
        ("--mpi", signal.SIGTERM),
        ("--gloo", signal.SIGKILL),
        *(once_more(way, number) for way, number in (("--gloo", signal.SIGHUP), ("--mpi", signal.SIGKILL))),
    ],
)
def test_the_ranks_end_with_the_launcher(launch: Start, way: str, number: signal.Signals) -> None:
    """After SIGTERM, SIGHUP and even kill -9 of the launcher nothing is left: no daemon, no file of MPI's memory."""
    job = launch("-np", "2", way, script=DAEMON + "from mpi4py import MPI\n" * (way == "--mpi") + WAITS)
    job.ready(2)
    shared = job.shared_memory()
    assert shared or way == "--gloo" or mpi.library_vendor() != "MPICH"
    assert eventually(lambda: len([each for each in job.left() if each.cmdline()[0] == "python"]) == 2 * 2)
    job.send(number)
    code, _ = job.finish()
    assert code == (-9 if number is signal.SIGKILL else 128 + number), job.err
    assert job.gone()
    assert not any(Path(path).exists() for path in shared)


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_many_more_ranks_than_cores_are_only_slow(launch: Start) -> None:
    """64 ranks, of which each waits for a core most of the time, find each other, reduce and end."""
    script = """
    import numpy as np, workbench as hvd
    hvd.init()
    for _ in range(100):
        total = hvd.allreduce(np.full(1000, float(hvd.rank())), op=hvd.Sum, name="total")
    print(total.min(), total.max())
    """
    job = launch("-np", "64", "--gloo", script=textwrap.dedent(script))
    assert job.finish(500)[0] == 0, job.err[-3000:]
    assert sorted(line.partition(":")[2] for line in job.out.splitlines()) == ["2016.0 2016.0"] * 64


# --- workbench.run ------------------------------------------------------------------------------------


def quiet(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, for messages of failing tests."""
    return "".join(capsys.readouterr())


def test_results_come_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    """Each rank gets the arguments, calls collectives and returns; what it prints has its rank before it."""
    factor = 10

    def train(x: float, power: int = 1) -> tuple[int, float]:
        import workbench as hvd

        hvd.init()
        print("in", hvd.rank())
        return hvd.rank(), float(hvd.allreduce(numpy.full(2, x * factor), op=hvd.Sum)[0]) ** power

    assert run(train, (1.5,), {"power": 2}, np=2) == [(0, 900.0), (1, 900.0)]
    assert sorted(capsys.readouterr().out.splitlines()) == [f"[{rank}]<stdout>:in {rank}" for rank in range(2)]


@pytest.mark.parametrize("way", ["use_mpi", once_more("use_gloo")])
def test_keywords_of_horovod(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """num_proc, env, output_filename, verbose and the rest mean what they mean in ``horovod.run``."""

    def look() -> tuple[str, str, str | None]:
        print("hello")
        from workbench import config

        return config.launch().launcher, os.environ["MINE"], os.environ.get("OMP_NUM_THREADS")

    options = {
        "num_proc": 2,
        way: True,
        "hosts": "localhost:2",
        "env": {"MINE": "x", "OMP_NUM_THREADS": "3"},
        "output_filename": str(tmp_path),
        "verbose": 1,
        "executable": sys.executable,
        "start_timeout": 20,
    }
    found = run(look, **options)  # type: ignore[arg-type]
    assert [each[1:] for each in found] == [("x", "3")] * 2
    assert all((launcher == "torchrun") == (way == "use_gloo") for launcher, *_ in found)
    assert (tmp_path / "rank.1" / "stdout").read_text() == "hello\n"
    assert "workbench: starting " in capsys.readouterr().err


def test_an_elastic_job_gives_results_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank dies, and the results are those of the ranks that train at the end; Horovod's keywords mean the same."""

    def train(steps: int) -> tuple[int, int]:
        import workbench as hvd
        from workbench import elastic
        from workbench.job.objects import broadcast_object

        @elastic.run
        def loop(state: elastic.ObjectState) -> int:
            while state.step < steps:
                state.step += 1
                if state.step == 3 and os.environ["WORKBENCH_WORKER"] == "1":
                    os._exit(3)
                state.commit()
            return int(state.step)

        hvd.init()
        return loop(elastic.ObjectState(broadcast_object, hvd.rank, step=0)), hvd.size()

    here = tmp_path / "here.sh"
    here.write_text("#!/bin/sh\necho localhost\n")
    here.chmod(0o755)
    options = {"min_num_proc": 1, "max_num_proc": 2, "reset_limit": 3, "cooldown_range": (50.0, 60.0)}
    found = {"host_discovery_script": str(here), "slots": 2, "ssh_port": 22, "disable_cache": True}
    assert run(train, (9,), num_proc=2, elastic_timeout=30.0, **options, **found) == [(9, 1)], quiet(capsys)  # type: ignore[arg-type]
    with pytest.raises(RankFailedError, match="number of resets during elastic job exceeded limit: 0"):
        run(train, (9,), np=2, min_np=1, reset_limit=0, network_interfaces=["lo"])


def test_results_of_an_elastic_job_without_init_come_by_worker(tmp_path: Path) -> None:
    """Nobody has a rank there; whoever ends first does not come first."""

    def work() -> int:
        worker, other = int(os.environ["WORKBENCH_WORKER"]), tmp_path / "worker 1 has ended"
        while worker == 0 and not other.exists():
            time.sleep(0.01)
        if worker == 1:
            atexit.register(other.touch)
        return worker

    assert run(work, min_num_proc=2) == [0, 1]


def test_an_exception_comes_with_its_ranks_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """The culprit's traceback is in the text, its exception is the cause; the others' errors are not it."""

    class OddError(Exception):
        """Cannot be pickled: it holds a lock."""

        def __init__(self) -> None:
            import threading

            super().__init__("odd one")
            self.lock = threading.Lock()

    def train(odd: bool) -> None:
        import workbench as hvd

        hvd.init()
        if odd or hvd.rank() == 1:
            the_line = {} if not odd else {"missing": 1}
            assert the_line["missing"]
            raise OddError
        hvd.allreduce(numpy.ones(2), name="x")

    with pytest.raises(RankFailedError, match="Rank 1 raised KeyError: 'missing'") as caught:
        run(train, (False,), np=2)
    assert "in train" in str(caught.value)
    assert "the_line" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RankFailedError, match="odd one") as caught:
        run(train, (True,), np=1)
    assert caught.value.__cause__ is None, quiet(capsys)


def test_every_other_end_is_an_error_too(capsys: pytest.CaptureFixture[str], new_children: Children) -> None:
    """A rank that is killed, leaves, returns what cannot be pickled or is too slow: an error of its own each."""

    def end(how: str) -> object:
        import threading

        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            sys.exit(4)
        if how == "leave":
            os._exit(0)
        if how == "slow":
            time.sleep(60)
        return threading.Lock()

    kinds = {
        "kill": (PeerLostError, "Rank 0 was killed by SIGKILL"),
        "exit": (RankFailedError, "Rank 0 ended with exit code 4"),
        "leave": (RankFailedError, "Rank 0 ended without a result"),
        "lock": (RankFailedError, "Rank 0 raised TypeError: cannot pickle"),
        "slow": (DeadlineError, "had not ended after 2 s"),
    }
    for how, (kind, message) in kinds.items():
        with pytest.raises(kind, match=message):
            run(end, (how,), np=1, use_gloo=True, timeout_s=2 if how == "slow" else None)
    assert not new_children(), quiet(capsys)


def test_wrong_calls_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contradictions, no ranks, another machine, and a call from a rank are refused."""
    with pytest.raises(ValueError, match="mean the same"):
        run(print, np=2, num_proc=3)
    with pytest.raises(ValueError, match="min_num_proc=1 and min_np=2 mean the same"):
        run(print, np=2, min_num_proc=1, min_np=2)
    with pytest.raises(LaunchError, match="--min-np 3, -np 3, --max-np 2"):
        run(print, np=3, max_np=2)
    with pytest.raises(ValueError, match="has no such deadline"):
        run(print, np=2, min_np=1, timeout_s=1)
    with pytest.raises(ValueError, match="at least 1"):
        run(print, np=0)
    with pytest.raises(LaunchError, match="exclude each other"):
        run(print, np=2, use_mpi=True, use_gloo=True)
    with pytest.raises(LaunchError, match="named twice"):
        run(print, np=2, hosts="localhost:1,localhost:1")
    with pytest.raises(LaunchError, match=r"no-such-host.invalid: there is no host|ssh cannot be run"):
        run(print, np=2, hosts="localhost:1,no-such-host.invalid:1")
    with pytest.raises(LaunchError, match="no program"):
        run(print, np=2, executable="/no/such/python")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(LaunchError, match="is a rank of a job"):
        run(print, np=2)


SCRIPT = """
import time
from workbench.launch.function import run
import beside

class Result:
    def __init__(self, value): self.value = value

def train(x):
    print("ready")
    return Result(beside.double(x))

def wait():
    print("ready")
    time.sleep(60)

if __name__ == "__main__":
    print([each.value for each in run(train, (4,), np=1, use_gloo=True)])
    try: run(wait, np=2)
    except KeyboardInterrupt as error: print("interrupted:", error)
"""


def test_a_script_with_a_module_beside_it_and_ctrl_c(launch: Start, tmp_path: Path) -> None:
    """Functions and classes of ``__main__`` travel, modules beside the script are found, Ctrl-C ends the ranks."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.py").write_text("def double(x): return 2 * x\n")
    (folder / "main.py").write_text(SCRIPT)
    job = launch(head=[sys.executable], command=[str(folder / "main.py")])
    job.ready(3)
    assert "[8]" in job.out
    job.send(signal.SIGINT)
    code, _ = job.finish()
    assert code == 0, job.err
    assert job.out.splitlines()[-1] == "interrupted: The job was ended by SIGINT."
    assert job.gone()


def test_the_stop_button_of_a_notebook_ends_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt of the kernel amid ``run`` reaches the ranks; the cell ends with KeyboardInterrupt, none is left."""
    monkeypatch.setenv("PYTHONPATH", mpi.environment(1).get("PYTHONPATH", ""))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    code = "def f():\n    import time\n    print('ready')\n    time.sleep(60)\n"
    with jupyter_client.run_kernel() as client:
        kernel = client.parent
        client.execute(f"{code}from workbench.launch.function import run; run(f, np=2)")
        ranks = []
        while len(ranks) < 2:
            message = client.get_iopub_msg(timeout=30)
            ranks += re.findall("ready", message["content"].get("text", ""))
        family = psutil.Process(kernel.provisioner.pid).children(recursive=True)
        kernel.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=30))["msg_type"] != "execute_reply":
            pass
        assert reply["content"].get("ename") == "KeyboardInterrupt", reply["content"]
        assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
