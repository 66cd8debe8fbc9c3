"""A job's description, all its forms, and ``workbench k8s``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from workbench.cli import main as cli
from workbench.cli.jobs import command, forms, helm_values, operators, slurm
from workbench.cli.jobs.description import JobDescription, seconds
from workbench.errors import LaunchError
from workbench.launch.site import Site
from workbench.launch.slurm import batch

COMMAND = ["python", "train.py"]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"command": []}, "command is [], but must be words"),
    ({"command": "python train.py"}, "command is 'python train.py', but must be words"),
    ({"np": 0}, "np is 0, but must be a whole number, 1 or more"),
    ({"np": -4}, "np is -4"),
    ({"np": 2.0}, "np is 2.0"),
    ({"np": True}, "np is True"),
    ({"slots": 0}, "slots is 0"),
    ({"gpus": -1}, "gpus is -1, but must be a whole number, 0 or more"),
    ({"cpus": 0}, "cpus is 0"),
    ({"np": 5, "slots": 2}, "5 ranks do not fill workers of 2. All workers are alike: take 4 or 6, or slots=1"),
    ({"np": 1, "slots": 2}, "1 ranks do not fill workers of 2. All workers are alike: take 2, or slots=1"),
    ({"np": 4, "slots": 2, "min_np": 1, "max_np": 4}, "1 ranks as min_np do not fill workers of 2"),
    ({"np": 4, "min_np": 5, "max_np": 6}, "min_np=5, np=4, max_np=6"),
    ({"np": 4, "min_np": 1}, "min_np=1, np=4, max_np=0: an elastic job has all three"),
    ({"np": 4, "max_np": 2}, "min_np=0, np=4, max_np=2"),
    ({"memory": "2 GB"}, "memory is '2 GB'"),
    ({"memory": "0Gi"}, "memory is '0Gi'"),
    ({"time": "an hour"}, "time is 'an hour'"),
    ({"time": "0"}, "time is '0': a job without any time"),
    ({"name": "My_Job"}, "'My_Job' is not a valid name for a job"),
    ({"name": "1st"}, "'1st' is not a valid name for a job"),
    ({"name": "a" * 55}, f"{'a' * 55}-worker-0, may have at most 63 characters"),
    ({"name": "a" * 50, "np": 100_001}, "may have at most 63 characters"),
    ({"env": {"1A": "b"}}, "env: '1A' is not a valid name of a variable"),
    ({"env": {"A": "b\0"}}, "command or env contains a null character"),
    ({"command": ["a\0"]}, "command or env contains a null character"),
    ({"queue": "Team A"}, "queue is 'Team A'"),
    ({"priority": "hi!"}, "priority is 'hi!'"),
]


@pytest.mark.parametrize(("told", "said"), BAD, ids=[said[:30] for _, said in BAD])
def test_a_bad_description_is_refused(told: dict[str, Any], said: str) -> None:
    """When it is made, with a sentence that names the value."""
    with pytest.raises(LaunchError) as raised:
        JobDescription(**{"command": COMMAND, **told})
    assert said in str(raised.value)


def test_a_queue_may_be_a_partition_s_name() -> None:
    """Slurm's have capitals and underscores."""
    assert "--partition=GPU_big\n" in slurm.script(JobDescription(COMMAND, queue="GPU_big"))


def test_the_longest_name_is_taken() -> None:
    """63 characters with ``-worker-0``."""
    assert JobDescription(COMMAND, name="a" * 54).workers == 1


@pytest.mark.parametrize("image", ["", "workbench", "a/b:latest", "registry:5000/a", "A b:1", "a:1@sha256:short"])
def test_an_image_that_may_change_is_refused(image: str) -> None:
    """No name, no tag or digest, latest, or no name of an image; without pods no image is needed."""
    job = JobDescription(COMMAND, image=image)
    for make in forms.MANIFESTS.values():
        with pytest.raises(LaunchError, match="image"):
            make(job)
    assert "workbench run" in forms.run_line(job) + slurm.script(job)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-0", 86400), ("1-2:30", 95400), ("1-2:30:10", 95410)],
)
def test_a_limit_is_slurm_s(text: str, wanted: int) -> None:
    """Minutes first, then with seconds, then hours before; days before hours."""
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", [":", "1:", "-1", "1-", "1:2:3:4", "１０", "1.5", " 5"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    """Other digits than 0 to 9 too."""
    with pytest.raises(LaunchError, match="time is"):
        seconds(text)


def test_fixed_engines_refuse_an_elastic_job() -> None:
    """A JobSet, a TrainJob and a batch script, and they name what is elastic; their forms are left out."""
    job = JobDescription(COMMAND, np=2, min_np=1, max_np=4, image="a:1")
    for make in (operators.jobset, operators.trainjob, slurm.script):
        with pytest.raises(LaunchError, match="fixed number of ranks, and this job has 1 to 4"):
            make(job)
    assert sorted(forms.lines(job)) == ["helm-values", "mpijob", "workbench run"]


def test_what_one_engine_cannot_have_is_refused() -> None:
    """A name that is too long for a JobSet's pods alone, or for the chart; a priority class in a TrainJob."""
    with pytest.raises(LaunchError, match="6 more characters name a pod"):
        operators.jobset(JobDescription(COMMAND, name="a" * 50, image="a:1"))
    with pytest.raises(LaunchError, match="in the chart a name has 40 characters"):
        helm_values.values(JobDescription(COMMAND, name="a" * 41, image="a:1"))
    with pytest.raises(LaunchError, match="priority class of the runtime"):
        operators.trainjob(JobDescription(COMMAND, priority="high", image="a:1"))


def test_all_forms_of_one_job() -> None:
    """Each holds the command; those for Kubernetes are one document each, without YAML's references."""
    job = JobDescription(COMMAND, np=4, slots=2, image="a/b:1", env={"SEED": "7"})
    texts = forms.lines(job)
    assert sorted(texts) == ["helm-values", "jobset", "mpijob", "slurm", "trainjob", "workbench run"]
    assert texts["workbench run"] == "env SEED=7 workbench run -np 4 -- python train.py"
    for kind in forms.MANIFESTS:
        (document,) = yaml.safe_load_all(texts[kind])
        assert document
        assert "&id" not in texts[kind]


def test_the_batch_script_is_that_of_workbench_slurm() -> None:
    """The same as from ``Wanted``, with the queue as partition and the variables before the ranks."""
    job = JobDescription(
        COMMAND, np=4, slots=2, gpus=1, cpus=3, time="30:00", name="mnist", queue="gpu", memory="1500M"
    )
    memory = "--mem=2862M"  # 2 × 1500 × 10⁶ bytes, in MiB
    wanted = batch.Wanted(2, 2, gpus_per_node=2, cpus_per_task=3, time="30:00", name="mnist", options=(memory,))
    assert slurm.script(job) == batch.script(wanted, Site(partition="gpu"), "", COMMAND)
    lines = slurm.script(JobDescription(COMMAND, env={"A": "b c"}), Site(modules=("cuda",))).splitlines()
    at = lines.index("export 'A=b c'")
    assert lines.index("module load cuda") < at < lines.index("workbench run -np 1 python train.py")


def test_the_command_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --output nothing is printed; without, the same text is."""
    words = ["k8s", "mpijob", "--np", "4", "--slots", "2", "--image", "a:1", "--env", "A=b=c"]
    path = tmp_path / "job.yaml"
    assert cli.main([*words, "--output", str(path), "--", *COMMAND]) == 0
    assert capsys.readouterr().out == ""
    assert cli.main([*words, *COMMAND]) == 0
    assert capsys.readouterr().out == path.read_text()
    (launcher,) = yaml.safe_load(path.read_text())["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"][
        "containers"
    ]
    assert launcher["env"] == [{"name": "A", "value": "b=c"}]
    assert launcher["args"][-2:] == COMMAND


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "a:1"], "First options, then a command"),
        (["--image", "a:1", "--env", "A", "--", "true"], "--env A: a variable has a value: A=text"),
        (["--np", "3", "--slots", "2", "--image", "a:1", "--", "true"], "3 ranks do not fill workers of 2"),
        (["--", "true"], "Pods need an image"),
        (
            ["--image", "a:1", "--output", "/nowhere/job.yaml", "--", "true"],
            "/nowhere/job.yaml cannot be written: No such",
        ),
    ],
)
def test_a_bad_command_line_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 1, one sentence and no manifest."""
    assert cli.main(["k8s", "jobset", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True), err


def test_the_command_knows_all_kinds() -> None:
    """It names them before it loads what writes them."""
    assert tuple(forms.MANIFESTS) == command.KINDS


def test_without_pyyaml_it_says_what_to_install() -> None:
    """As where the extra kubernetes is not installed; everything else of the command works."""
    blocked = "import sys; sys.modules['yaml'] = None; from workbench.cli.main import main; sys.exit(main())"
    words = ["k8s", "mpijob", "--image", "a:1", "--", "true"]
    done = subprocess.run([sys.executable, "-c", blocked, *words], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install '.[kubernetes]' in a clone" in done.stderr
