"""Scripts in the styles of public ones: each is converted to an equal training, and says what is left to decide.

A script with something to decide ends with comments such as ``# decide 12: no loop``: the line, and words of what is
said. In ``by_hand`` are conversions of those that cannot be compared with the script itself: batch norm uses the
samples of one rank, and Accelerate is not installed.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from workbench.convert.check.compare import compare, table
from workbench.convert.conversion import Converted, Options, convert
from workbench.convert.explain import explain
from workbench.convert.source import RefusedError, read
from workbench.convert.steps import STEPS
from workbench.course import six_steps

HERE = Path(__file__).parent
CORPUS = sorted((HERE / "corpus").glob("*.py"))
BY_HAND = {path.stem: path for path in (HERE / "by_hand").glob("*.py")}
EXPECTED = {path: re.findall(r"^# decide (\d+): (.*)$", path.read_text(), re.MULTILINE) for path in CORPUS}
CONVERTED = [path for path, reasons in EXPECTED.items() if not reasons]
UNDECIDED = [path for path, reasons in EXPECTED.items() if reasons]
SERIAL = [path for path in CONVERTED if path.stem.startswith(("torch", "keras", "tf"))]
TORCH = [path for path in CONVERTED if path.stem.startswith(("torch", "ddp", "accelerate"))]
FORMS = (
    "torch_tabs",
    "torch_tutorial_quickstart",
    "torch_trainer_class",
    "torch_text",
    "torch_plateau",
    "keras_callbacks",
    "keras_pipeline",
    "tf_linear",
    "tf_loop_subclass",
)
"""A script of each framework and each form; the others are for thorough runs."""
NOT_BACK = {  # with the reason
    "torch_autoencoder": "op=hvd.Sum",
    "torch_transfer": "DDP averages gradients only of what goes through",
}


@cache
def converted(path: Path) -> Converted:
    """A script of the corpus."""
    new = convert(path.name, read(path).text)
    assert bool(new.edits.undecided) == bool(EXPECTED[path])
    return new


def by_names(paths: list[Path], quick: tuple[str, ...] = ()) -> list[object]:
    """Parameters; all but the quick ones are for thorough runs."""
    return [
        pytest.param(path, id=path.stem, marks=[] if path.stem in quick else pytest.mark.thorough) for path in paths
    ]


@pytest.mark.parametrize("path", by_names(SERIAL, FORMS))
def test_a_serial_script_gets_each_step(path: Path) -> None:
    """With its comment; the course's reader of scripts finds them; a second conversion is refused."""
    new = converted(path)
    assert {int(step) for step in re.findall(r"# Step (\d):", new.after)} == set(STEPS)
    found = six_steps.find(new.after)
    assert [step for step, lines in found.items() if not lines and step != 2] == []
    assert STEPS.items() > six_steps.STEPS.items()
    with pytest.raises(RefusedError, match="uses the workbench already"):
        convert(path.name, new.after)


@pytest.mark.parametrize("path", by_names(CONVERTED, FORMS))
def test_what_is_not_changed_keeps_its_form(path: Path) -> None:
    """Comments and the ends of lines are those of the script, and each changed line is explained."""
    new = converted(path)
    assert [line for line in new.before.splitlines() if line.lstrip().startswith("#")] == [
        line for line in new.after.splitlines() if line.lstrip().startswith("#") and not re.match(r"\s*# Step \d", line)
    ]
    assert ("\r\n" in new.before) == ("\r\n" in new.after)
    assert new.after.count("\n") == (new.after.count("\r\n") or new.after.count("\n"))
    text = explain(path.name, new)
    lines = new.after.splitlines()
    for number, code in re.findall(r"^- line (\d+) \(line \d+ before\): `(.*?)`: ", text, re.MULTILINE):
        assert lines[int(number) - 1].strip().startswith(code)


@pytest.mark.parametrize("path", UNDECIDED, ids=lambda path: path.stem)
def test_what_is_to_decide_stands_at_its_line(path: Path) -> None:
    """Those that the script names, and no others, each in a comment above the line; all else is converted."""
    new = converted(path)
    assert [str(each.line) for each in new.edits.undecided] == [line for line, _ in EXPECTED[path]]
    lines = new.after.splitlines()
    for reason, (_, words) in zip(new.edits.undecided, EXPECTED[path], strict=True):
        assert words in reason.text
        said = next(i for i, line in enumerate(lines) if f"# Decide: {words[:20]}" in line)
        code = next(line.strip() for line in lines[said:] if not line.strip().startswith("#"))
        assert code[:8] == new.before.splitlines()[reason.line - 1].strip()[:8]
    assert "hvd.init()" in lines


@pytest.mark.parametrize("path", by_names(TORCH, ("torch_trainer_class", "ddp_dist", *NOT_BACK)))
def test_the_way_back_leaves_nothing_of_the_workbench(path: Path) -> None:
    """Plain DDP, which is converted again; or a reason why PyTorch has no counterpart."""
    there = converted(path).after
    if path.stem in NOT_BACK:
        with pytest.raises(RefusedError, match=NOT_BACK[path.stem]):
            convert(path.name, there, Options(to="ddp"))
        return
    back = convert(path.name, there, Options(to="ddp")).after
    assert "hvd" not in back
    assert "workbench" not in back
    if path.stem in ("torch_trainer_class", "ddp_dist"):
        assert "DistributedOptimizer(" in convert(path.name, back).after


@pytest.mark.parallel
@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", by_names(CONVERTED))
def test_ranks_train_as_the_script_did(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From beginning to end on two ranks: the same losses and weights, up to 1e-6."""
    monkeypatch.chdir(tmp_path)
    if not path.stem.startswith(("torch", "ddp", "accelerate")) and find_spec("tensorflow") is None:
        pytest.skip("needs the extra tensorflow")
    new = converted(path)
    if path.stem in BY_HAND:
        new = dataclasses.replace(new, before=BY_HAND[path.stem].read_text(), kind="by hand")
    found = compare(new, path, [], steps=10_000)
    assert found.agrees, table(found)


@pytest.mark.parallel
@pytest.mark.timeout(180)
@pytest.mark.parametrize("path", by_names([path for path in TORCH if path.stem not in NOT_BACK]))
def test_plain_ddp_trains_alike(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is converted, and back to DDP."""
    monkeypatch.chdir(tmp_path)
    found = compare(convert(path.name, converted(path).after, Options(to="ddp")), path, [], steps=10_000)
    assert found.agrees, table(found)


@pytest.mark.parallel
@pytest.mark.timeout(180)
def test_ddp_trains_alike_over_the_workbench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its name in the backends' place, as ``workbench run --as-ddp`` does it."""
    monkeypatch.chdir(tmp_path)
    path = HERE / "corpus" / "torch_compact.py"
    back = convert(path.name, converted(path).after, Options(to="ddp"))
    ours = back.after.replace('"nccl" if torch.cuda.is_available() else "gloo"', '"workbench"')
    assert ours != back.after
    found = compare(dataclasses.replace(back, after=ours), path, [], steps=10_000)
    assert found.agrees, table(found)


MISTAKES = {
    "the rate": ("lr=0.1", "lr=0.1 * hvd.size()"),
    "the batch": ("16 // hvd.size()", "16"),
    "no new order": ("loader.sampler.set_epoch(epoch)", "pass"),
    "no average": (
        "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())",
        "pass",
    ),
    "the same samples": ("rank=hvd.rank()", "rank=0"),
}


@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_difference(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planted into a converted script is seen."""
    monkeypatch.chdir(tmp_path)
    path = HERE / "corpus" / "torch_classifier.py"
    text = path.read_text().replace("lr=args.lr", "lr=0.1")
    new = convert(path.name, text)
    assert MISTAKES[name][0] in new.after
    found = compare(dataclasses.replace(new, after=new.after.replace(*MISTAKES[name])), path, [], steps=6)
    assert not found.agrees
    assert "✗ 2 ranks do not train as 1 rank did" in table(found)
