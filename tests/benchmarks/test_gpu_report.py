"""``benchmarks/gpu_report.py`` without a GPU: what it says, what it writes of made-up results; dry runs on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cuda_standin import install
from loading import BENCHMARKS, load

from workbench.config import child_environment
from workbench.transport.gpu import select as gpu_select

# Nothing of this is there on a machine that has been set up for GPUs alone.
ABSENT = ["IPython", "cloudpickle", "ipyparallel", "jax", "keras", "matplotlib", "mpi4py", "pytest"]
ABSENT += ["tensorflow", "zmq"]
ROOT = BENCHMARKS.parent
TIMES = {"plain torch": [1.0, 2.0], "workbench": [1.01, 2.02], "DDP": [1.1, 2.2], "DDP tuned": [1.05, 2.1]}
SAID: dict[str, dict[str, Any]] = {
    "verbs.py": {"way": "NCCL", "checks": 4000, "wrong": []},
    "late.py": {"wrong": 0},
    "trains.py": {"from_serial": 1e-6, "ranks_equal": True, "in_buckets": 6, "gradients": 6},
    "gpu_copy.py": {
        **{"bytes": 100, "gradients": 161, "launches": [1, 1], "right": True},
        **{"ms": {"copy": [1.0], "pack": [1.1], "unpack": [2.0]}, "host_us": {"copy": 5, "pack": 200, "unpack": 200}},
    },
    "gpu_training.py": {
        **{"ranks": 1, "batch": 256, "unit": "images", "gradients": 161, "weights_equal": True},
        "reduce_ms": [1.0, 2.0],
        "seconds": TIMES | {"workbench, whole way": [1.03, 2.06]},
    },
}
MACHINE: dict[str, Any] = {
    **{"gpu": "NVIDIA H100", "gpus": 1, "memory_gib": 79.2, "driver": "580", "cpu": "a CPU", "system": "Linux"},
    **{"versions": {"torch": "2.11.0", "cupy": "14.2.0", "nccl": "2.28.9"}, "nccl": 22809, "problem": ""},
}


report, judge, plain_ranks = load("gpu_report"), load("gpu_results"), load("plain_ranks")


def made_up(ranks: int, script: Path, words: tuple[str, ...], deadline_s: float, **env: str) -> list[Any]:
    """What the ranks would print."""
    one = SAID[script.name]
    if "--leave-out" in words:
        one = {"ready": 5} if words[-1] != "nothing" else {"ready": 0, "done": 0}
    return [one | ({"ranks": ranks} if "ranks" in one else {})] * ranks


def whole(machine: dict[str, Any], start: Any = made_up, quick: bool = False) -> dict[str, Any]:
    """A report of made-up results, as it is read from its file."""
    sections = report.measure(machine, report.plan(quick, machine["gpus"]), start, time.monotonic() + 460)
    found: dict[str, Any] = json.loads(json.dumps(report.as_report(machine, sections, quick)))
    return found


def by_title(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections."""
    return {each["section"]: each for each in found["sections"]}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A script that runs another one as if nothing but the packages that a GPU machine needs were installed."""
    path = tmp_path / "bare.py"
    path.write_text(
        "import runpy, sys\n"
        "from pathlib import Path\n"
        f"ABSENT = set({ABSENT!r})\n"
        "class Hidden:\n"
        "    def __init__(self, finder): self.finder = finder\n"
        "    def __getattr__(self, name): return getattr(self.finder, name)\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        absent = name.partition('.')[0] in ABSENT\n"
        "        return None if absent else self.finder.find_spec(name, path, target)\n"
        "sys.meta_path[:] = [Hidden(finder) for finder in sys.meta_path]\n"
        "sys.argv = sys.argv[1:]\n"
        "sys.path[0] = str(Path(sys.argv[0]).parent)\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    return path


# --- without a GPU ------------------------------------------------------------------------------------


@pytest.mark.skipif(gpu_select.has_driver(), reason="there is a GPU here")
@pytest.mark.parametrize(("words", "code"), [((), 0), (("--require-gpu",), 1)])
def test_without_a_gpu_it_says_so_in_one_line(bare: Path, words: tuple[str, ...], code: int) -> None:
    """Nothing is written."""
    out = bare.parent / "report.json"
    command = [sys.executable, str(bare), str(BENCHMARKS / "gpu_report.py"), "--out", str(out), *words]
    child = subprocess.run(command, cwd=bare.parent, capture_output=True, text=True, timeout=50, check=False)
    assert child.returncode == code, child.stderr
    assert child.stdout == "Nothing measured: no NVIDIA driver on this machine.\n"
    assert not out.exists()


def test_a_gpu_that_torch_does_not_see_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is the one that the first process found; it may also have failed."""
    monkeypatch.setattr(report, "has_driver", lambda: True)
    monkeypatch.setattr(report, "run", lambda *words: [{"problem": "torch sees no GPU"}])
    assert report.main(["--out", str(tmp_path / "out.json")]) == 0

    def fails(*words: Any) -> Any:
        raise plain_ranks.RanksError("gpu_machine.py, rank 0 of 1: exit code 1:\nTraceback\nOSError: no such library")

    monkeypatch.setattr(report, "run", fails)
    assert report.main(["--out", str(tmp_path / "out.json"), "--require-gpu"]) == 1
    assert capsys.readouterr().out == (
        "Nothing measured: torch sees no GPU.\nNothing measured: OSError: no such library.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_this_machine_is_described() -> None:
    """By ``gpu_machine.py``, with a problem or with a GPU."""
    (found,) = plain_ranks.run(1, BENCHMARKS / "gpu_machine.py", (), 50.0)
    assert found["cpu"]
    assert found["problem"] or found["gpus"] > 0


# --- the report ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("gpus", [1, 4])
def test_a_report_has_machine_versions_date_and_figures(gpus: int, quick: bool) -> None:
    """Every section has results, or says why not; every result has its name, value, unit, target and judgement."""
    found = whole(MACHINE | {"gpus": gpus}, quick=quick)
    assert set(found) == {"kind", "quick", "date", "machine", "versions", "sections"}
    assert (found["machine"]["gpu"], found["quick"]) == ("NVIDIA H100", quick)
    assert {"torch", "cupy", "nccl"} <= set(found["versions"])
    titles = [each["section"] for each in found["sections"]]
    assert len(set(titles)) == len(titles)
    for section in found["sections"]:
        assert set(section) >= {"section", "ranks"}
        assert ("skipped" in section) != ("results" in section)
        names = [each["name"] for each in section.get("results", [])]
        assert len(set(names)) == len(names)
        for each in section.get("results", []):
            assert set(each) == {"name", "value", "low", "high", "unit", "target", "met"}
            assert (each["met"] is None) == (each["target"] == "")
    assert not report.went_wrong(found)
    assert sum(section.deadline_s for section in report.plan(True, 1)) < 2 * report.WHOLE_S
    assert report.told(found).startswith("Measured on ")


def test_figures_are_what_the_ranks_measured() -> None:
    """Medians of ratios of neighbours, and targets judged by them."""
    found = by_title(whole(MACHINE))
    steps = {each["name"]: each for each in found["ResNet-50, bf16 autocast, 1 rank"]["results"]}
    over = {name: (steps[f"{name}: over plain torch"]["value"], steps[f"{name}: over plain torch"]["met"]) for name in
            ("workbench", "workbench, whole way", "DDP", "DDP tuned")}  # fmt: skip
    assert over["workbench"] == (pytest.approx(1.0), True)
    assert over["workbench, whole way"] == (pytest.approx(3.0), False)
    assert over["DDP tuned"] == (pytest.approx(5.0), None)
    assert steps["workbench, whole way: over the better DDP"]["value"] == pytest.approx(100 * (1.03 / 1.05 - 1))
    assert steps["workbench, whole way: over the better DDP"]["met"] is True
    assert steps["all 161 gradients by one call, nothing beside it"]["value"] == 1.5
    packing = {each["name"]: each for each in found["pack and unpack"]["results"]}
    assert packing["pack: share of the copy's bandwidth"]["value"] == pytest.approx(100 / 1.1)
    assert packing["unpack: share of the copy's bandwidth"]["met"] is False
    assert packing["device to device copy"]["value"] == pytest.approx(2 * 100 / 1.0 / 1e6)


def test_ranks_that_share_a_gpu_need_a_new_nccl() -> None:
    """With an older one these sections are left out, and say so; by way of the host two ranks can do it anyway."""
    old = by_title(whole(MACHINE))
    assert "NCCL 2.28.9 cannot" in old["every verb, 2 ranks, NCCL"]["skipped"]
    assert "results" in old["every verb, 2 ranks, by way of the host"]
    for machine in (MACHINE | {"nccl": 23003}, MACHINE | {"gpus": 2}):
        assert "results" in by_title(whole(machine))["every verb, 2 ranks, NCCL"]
    none = by_title(whole(MACHINE | {"nccl": 0}))
    assert none["every verb, 1 rank, NCCL"]["skipped"] == "cupy finds no NCCL"


def test_a_section_that_fails_is_told_and_the_rest_goes_on() -> None:
    """Also one whose ranks print something else; the exit code is 1 then, as for a wrong result."""

    def start(ranks: int, script: Path, words: tuple[str, ...], deadline_s: float, **env: str) -> list[Any]:
        if script.name == "gpu_copy.py":
            raise plain_ranks.RanksError("gpu_copy.py, rank 0 of 1: not done after 60 s:\nlast words")
        return [{}] if script.name == "gpu_training.py" else made_up(ranks, script, words, deadline_s, **env)

    found = whole(MACHINE, start)
    sections = by_title(found)
    assert "last words" in sections["pack and unpack"]["failed"]
    assert sections["ResNet-50, bf16 autocast, 1 rank"]["failed"].startswith("KeyError")
    assert sections["late streams, 1 rank, NCCL"]["results"][0]["met"]
    assert report.went_wrong(found)
    assert "failed: gpu_copy.py, rank 0 of 1: not done after 60 s:" in report.told(found)


def test_the_picture_shows_each_way_to_train() -> None:
    """As a document of its own; also of one that is faster than plain torch. Without trainings there is none."""
    found = whole(MACHINE | {"nccl": 23007})
    found["sections"][-1]["results"][3]["value"] = -0.5
    svg = ElementTree.fromstring(report.picture(found))
    text = " ".join(svg.itertext())
    for model in ("ResNet-50", "GPT-2 small"):
        for who in ("workbench", "workbench, whole way", "DDP", "DDP tuned"):
            assert f"{model}, 1 rank: {who}" in text
    assert "-0.5" in text
    assert min(float(each.get("width", "0").rstrip("%")) for each in svg.iter() if each.tag.endswith("rect")) >= 0
    assert len(report.picture(found)) < 1 << 20
    assert report.picture(found | {"sections": []}) == ""


def test_a_wrong_result_is_a_failure_and_a_slow_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are told, and judged by whoever reads them."""
    assert any(each["met"] is False for one in whole(MACHINE)["sections"] for each in one.get("results", []))
    assert not report.went_wrong(whole(MACHINE))
    monkeypatch.setitem(SAID, "verbs.py", {"way": "NCCL", "checks": 4000, "wrong": ["allreduce SUM"]})
    assert report.went_wrong(whole(MACHINE))


def test_what_there_is_no_time_for_is_left_out() -> None:
    """The whole run ends in time."""
    sections = report.measure(MACHINE, report.plan(False, 1), made_up, time.monotonic() + 1.0)
    assert {each.get("skipped") for each in sections} >= {"no time was left"}
    assert not any("results" in each for each in sections)


def test_main_writes_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file, as asked for, that lesson 12 can show."""

    def start(ranks: int, script: Path, words: tuple[str, ...], deadline_s: float, **env: str) -> list[Any]:
        return [MACHINE] if script.name == "gpu_machine.py" else made_up(ranks, script, words, deadline_s, **env)

    monkeypatch.setattr(report, "has_driver", lambda: True)
    monkeypatch.setattr(report, "run", start)
    out = tmp_path / "results" / "report.json"
    assert report.main(["--out", str(out), "--quick", "--only", "pack"]) == 0
    assert [each["section"] for each in json.loads(out.read_text())["sections"]] == ["pack and unpack"]


def test_what_is_stopped_amid_the_run_has_been_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each section the file is whole; ranks of other sections are ended."""

    def start(ranks: int, script: Path, words: tuple[str, ...], deadline_s: float, **env: str) -> list[Any]:
        if script.name == "gpu_training.py":
            raise KeyboardInterrupt
        return [MACHINE] if script.name == "gpu_machine.py" else made_up(ranks, script, words, deadline_s, **env)

    monkeypatch.setattr(report, "has_driver", lambda: True)
    monkeypatch.setattr(report, "run", start)
    out = tmp_path / "report.json"
    with pytest.raises(KeyboardInterrupt):
        report.main(["--out", str(out), "--quick"])
    titles = [each["section"] for each in json.loads(out.read_text())["sections"]]
    assert titles[0] == "every verb, 1 rank, NCCL"
    assert titles[-1] == "pack and unpack"


# --- the ranks ----------------------------------------------------------------------------------------


def test_resnet50_is_the_one_that_everybody_means() -> None:
    """161 tensors, 25,557,032 parameters, a thousand classes."""
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = load("resnet50").resnet50()
        shape = model.eval()(torch.empty(2, 3, 224, 224)).shape
    assert len(list(model.parameters())) == 161
    assert sum(param.numel() for param in model.parameters()) == 25_557_032
    assert shape == (2, 1000)


def test_gpt_is_as_large_as_gpt_2() -> None:
    """And gives a score for every word after every word; none sees what follows it."""
    torch = pytest.importorskip("torch")
    models = load("models")
    with torch.device("meta"):
        model = models.Gpt(models.GPT2_SMALL)
        shape = model(torch.zeros(2, 9, dtype=torch.int64)).shape
    assert len(list(model.parameters())) == 98
    assert sum(param.numel() for param in model.parameters()) == 123_551_232
    assert shape == (2, 50257, 9)
    small = models.Gpt(models.Shape(2, 8, 2, 7, 11))
    text = torch.arange(7)[None]
    assert torch.allclose(small(text)[..., :4], small(text[:, :4]), atol=1e-5)


def test_packing_is_one_launch_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own arithmetic, on a made-up GPU without clocks and with a smaller network."""
    torch = pytest.importorskip("torch")
    install(monkeypatch, devices=1)
    copy = load("gpu_copy")
    monkeypatch.setattr(copy, "resnet50", lambda: torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)))
    monkeypatch.setattr(copy, "queued_ms", lambda gpu, call, repeats: call() or 1.0)
    monkeypatch.setattr(copy, "host_us", lambda gpu, call, repeats: call() or 2.0)
    found = copy.measure(2)
    assert (found["launches"], found["right"], found["gradients"]) == ((1, 1), True, 4)
    assert found["bytes"] == 4 * (7 * 5 + 5 + 5 * 3 + 3)
    assert found["ms"] == {"copy": [1.0] * 2, "pack": [1.0] * 2, "unpack": [1.0] * 2}
    assert judge.copies([found])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parallel
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("ranks", "script", "words"),
    [
        (2, "tests/gpu/verbs.py", ()),
        (2, "tests/gpu/trains.py", ()),
        (1, "benchmarks/gpu_training.py", ("--model", "gpt", "--rounds", "2", "--steps", "2")),
        (2, "benchmarks/gpu_training.py", ("--rounds", "2", "--steps", "2")),
    ],
)
def test_a_dry_run_on_the_cpu(bare: Path, ranks: int, script: str, words: tuple[str, ...]) -> None:
    """What the ranks do on GPUs they can do on the CPU, rightly, with nothing installed but torch, numpy and psutil."""
    pytest.importorskip("torch")
    found = plain_ranks.run(ranks, bare, (str(ROOT / script), "--device", "cpu", *words), 100.0)
    name = Path(script).name
    results = {"verbs.py": judge.verbs, "trains.py": judge.trained, "gpu_training.py": judge.training}[name](found)
    assert [each for each in results if each["met"] is False and each["target"] in ("= 0", "≤ 1e-4")] == [], found
    assert set(SAID[name]) <= set(found[0])


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(120)
def test_the_tests_for_gpus_can_be_collected() -> None:
    """Where there is no GPU they are left out, so it is here that an import that fails is seen."""
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests/gpu"]
    env = child_environment(WORKBENCH_TEST_GPU_COLLECT="1")
    child = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-3000:]
    assert "test_every_wait_is_needed" in child.stdout


@pytest.mark.parallel
def test_ranks_that_fail_or_hang_are_told_and_gone(tmp_path: Path) -> None:
    """The first one that failed is quoted; at the deadline all are ended."""
    script = tmp_path / "ends.py"
    script.write_text(
        "import os, sys, time\nif sys.argv[1] == os.environ['RANK']: sys.exit('bad luck')\ntime.sleep(600)\n"
    )
    with pytest.raises(plain_ranks.RanksError, match=r"(?s)ends\.py, rank 1 of 2: ended with exit code 1:.*bad luck"):
        plain_ranks.run(2, script, ("1",), 5.0)
    begun = time.monotonic()
    with pytest.raises(plain_ranks.RanksError, match="not done after 2 s"):
        plain_ranks.run(2, script, ("3",), 2.0)
    assert time.monotonic() - begun < 10
    script.write_text("print('no JSON')\n")
    with pytest.raises(plain_ranks.RanksError, match="without a result"):
        plain_ranks.run(1, script, (), 20.0)


@pytest.mark.slow
@pytest.mark.skipif(not gpu_select.has_driver(), reason="needs a GPU")
@pytest.mark.gpu
@pytest.mark.timeout(300)
def test_a_quick_run_on_a_gpu(tmp_path: Path) -> None:
    """All of it, on a real one."""
    out = tmp_path / "report.json"
    assert report.main(["--quick", "--out", str(out)]) == 0, out.read_text()
    assert not any("failed" in each for each in json.loads(out.read_text())["sections"])
