"""The lights judge scripts in plain PyTorch, too: what is right is green, and a mistake turns off its light."""

from __future__ import annotations

from pathlib import Path

import pytest
from thorough import once_more

from workbench.course.build import ROOT
from workbench.course.training.conversion import Watched, watch

pytestmark = [pytest.mark.usefixtures("warm_torch"), pytest.mark.timeout(200)]
FOLDER = ROOT / "lessons" / "steps" / "plain"
MISTAKES = {
    ("ddp", "no set_epoch"): ("    train_sampler.set_epoch(epoch)\n", "", "Each sample once per epoch, in a new order"),
    ("ddp", "no sampler"): ("sampler=train_sampler", "shuffle=True", "Each sample once per epoch, in a new order"),
    ("ddp", "the whole batch on each"): ("BATCH // size", "BATCH", "The global batch is that of one process"),
    ("ddp", "rank 0 alone loads"): (
        "dist.broadcast_object_list(saved)",
        "pass",
        "The ranks begin with the same optimizer state",
    ),
    ("ddp", "the bare model"): ("trained(images)", "model(images)", "Every step takes the average of the gradients"),
    ("ddp", "own accuracy"): ("dist.all_reduce(counts)\n", "", "All ranks report the accuracy on all test data"),
    ("ddp", "all save"): (
        "if rank == 0:\n    torch.save",
        "if True:\n    torch.save",
        "Rank 0 saves and prints, and nobody",
    ),
    ("fsdp", "own weights"): ("    dist.broadcast(parameter.data, src=0)", "    pass", "those of one process"),
    ("fsdp", "the whole batch on each"): ("BATCH // size", "BATCH", "The global batch is that of one process"),
    ("fsdp", "all print"): (
        "if rank == 0:\n    torch.save",
        "if True:\n    torch.save",
        "Rank 0 saves and prints, and nobody",
    ),
}


QUICK = [("ddp", "rank 0 alone loads"), ("ddp", "the bare model"), ("fsdp", "own weights")]


def written(folder: Path, mistake: tuple[str, str]) -> Path:
    """A script with a mistake in it."""
    (name, _), (old, new, _) = mistake, MISTAKES[mistake]
    text = (FOLDER / f"{name}.py").read_text()
    assert text.count(old) == 1, old
    script = folder / f"{'-'.join(mistake)}.py"
    script.write_text(text.replace(old, new))
    return script


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Watched]:
    """Run one after the other, on ranks that are started once."""
    folder = tmp_path_factory.mktemp("plain")
    left = folder / "left.py"
    left.write_text((FOLDER / "ddp.py").read_text() + "\ndist.destroy_process_group()\n")
    scripts = [left, FOLDER / "ddp.py", FOLDER / "fsdp.py", *(written(folder, each) for each in QUICK)]
    return {each.script: each for each in watch(scripts, deadline_s=180)}


@pytest.mark.parametrize("name", ["ddp", "fsdp", "left"])
def test_what_is_right_is_green(name: str, watched: dict[str, Watched]) -> None:
    """All ten lights, for DistributedDataParallel and for fully_shard, also of a script that leaves at its end."""
    lights = watched[f"{name}.py"].lights()
    assert len(lights) == 10
    assert set(lights.values()) == {""}


@pytest.mark.parametrize(
    "mistake", [each if each in QUICK else once_more(each) for each in MISTAKES], ids=lambda each: " ".join(each)
)
def test_a_mistake_turns_off_its_light(mistake: tuple[str, str], watched: dict[str, Watched], tmp_path: Path) -> None:
    """And says what is wrong."""
    found = watched.get(f"{'-'.join(mistake)}.py") or watch([written(tmp_path, mistake)])[0]
    red = {name: wrong for name, wrong in found.lights().items() if wrong}
    assert any(MISTAKES[mistake][2] in name for name in red), red
