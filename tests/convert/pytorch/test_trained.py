"""Scripts that are converted and run, all of them in the same two ranks: each trains as it did on one rank."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from converting import DATA, LOADER, LOOP, MODEL, TRAINING, Trained, both, trained

pytest.importorskip("libcst")

from workbench.convert.check.compare import Comparison, table
from workbench.convert.conversion import Options, convert

pytestmark = [pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(240)]
CORPUS = Path(__file__).resolve().parents[1] / "corpus"

# --- gradients are averaged once, when they are complete, and before they are read ----------------------

WAYS = {
    "a rest of three batches": """\
for epoch in range(3):
    optimizer.zero_grad()
    for i, (xb, yb) in enumerate(loader):
        (F.cross_entropy(model(xb), yb) / 3).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a rest that steps": """\
for epoch in range(3):
    for i, (xb, yb) in enumerate(loader):
        (F.cross_entropy(model(xb), yb) / 3).backward()
        if (i + 1) % 3 == 0 or i + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
""",
    "two backward": """\
for xb, yb in loader:
    optimizer.zero_grad()
    out = model(xb)
    F.cross_entropy(out, yb).backward(retain_graph=True)
    (out ** 2).mean().backward()
    for each in model.parameters():
        each.grad.clamp_(-0.1, 0.1)
    optimizer.step()
""",
    "two optimizers": """\
head = torch.optim.Adam(model[2].parameters(), lr=0.1)
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
for xb, yb in loader:
    optimizer.zero_grad()
    head.zero_grad()
    F.cross_entropy(model(xb), yb).backward()
    optimizer.step()
    head.step()
""",
    "a flag for precision": """\
fast = False
scaler = torch.amp.GradScaler("cpu", enabled=fast)
for xb, yb in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    if fast:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
""",
}


# --- what a training loop adds up is that of all samples --------------------------------------------------

SAYS = {
    "the number of samples": "print(correct / len(x))",
    "the length of the loader": "print(correct / (len(loader) * 16))",
    "a number of its own": "n_train = len(data)\nprint(correct / n_train)",
    "the loader's data set": "print(correct / len(loader.dataset))",
    "a mean of batches": "print(round(total / len(loader), 5))",
    "means of batches by samples": "print(round(total / len(loader.dataset), 5))",
}


TOTALS = TRAINING.replace("correct = 0\n", "correct, total = 0, 0.0\n") + "        total += loss.item()\n"
MEAN = "mean = sum(xb.sum(0) for xb, yb in loader) / 64\nprint([round(each, 4) for each in mean.tolist()])\n"

# --- loaders whose call does not show what they are, and loops that train and evaluate ---------------------

RIGHT = "    print(correct / 64)\n"
PHASES = """\
loaders = {"train": DataLoader(data, 16, shuffle=True), "val": DataLoader(data, 16)}
for epoch in range(2):
    for phase in ["train", "val"]:
        correct = 0
        for xb, yb in loaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = model(xb)
                loss = F.cross_entropy(out, yb)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            correct += (out.argmax(1) == yb).sum().item()
        print(phase, correct / 64)
"""
HELPER = """\
def make(data):
    return DataLoader(data, batch_size=16, shuffle=True)
loader, test = make(data), make(data)
"""


OPTIONS = LOADER.replace("batch_size=16,", "**{'batch_size': 16},")
COUNT = "    print(sum(len(yb) for xb, yb in test))\n"

# --- all ranks evaluate with the same statistics of batch norm --------------------------------------------

EARLY = """\
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y).item()
    schedule.step(loss)
    model.train()
    if loss > best:
        break
    best = loss
"""


BATCH_NORM = TRAINING.replace("nn.ReLU()", "nn.BatchNorm1d(8), nn.ReLU()").replace("range(2)", "range(99)")
SCHEDULE = "schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)"
STOPS = BATCH_NORM.replace("for epoch", f"best = 9.0\n{SCHEDULE}\nfor epoch").replace("lr=0.1", "lr=2.0") + EARLY

SCRIPTS = {
    **{name: DATA + LOADER + MODEL + way for name, way in WAYS.items()},
    "totals": TOTALS + "\n".join(SAYS.values()),
    "a mean before": DATA + LOADER + MEAN + MODEL + LOOP + MEAN,
    "a loader with options": DATA + OPTIONS + MODEL + LOOP + RIGHT,
    "a dictionary of phases": DATA + MODEL + PHASES,
    "a function makes several": DATA + HELPER + MODEL + LOOP + RIGHT + COUNT,
    "stops": STOPS,
}
PRINT_ALIKE = ("totals", "a mean before", "a loader with options", "a dictionary of phases", "a function makes several")
CLASSIFIER = (CORPUS / "torch_classifier.py").read_text().replace("lr=args.lr", "lr=0.1")
NO_NEW_ORDER = ("loader.sampler.set_epoch(epoch)", "pass")


@pytest.fixture(scope="module")
def found(warm_torch: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Each script on one rank, and converted on two; one that is converted with a mistake, and one to plain DDP."""
    right = both(list(SCRIPTS.values()))
    wrong = convert("train.py", CLASSIFIER)
    assert NO_NEW_ORDER[0] in wrong.after
    right.append(dataclasses.replace(wrong, after=wrong.after.replace(*NO_NEW_ORDER)))
    ours = convert("train.py", TRAINING).after
    right.append(dataclasses.replace(convert("train.py", ours, Options(to="ddp")), before=TRAINING))
    return dict(zip([*SCRIPTS, "mistake", "DDP"], trained(right, tmp_path_factory.mktemp("trained")), strict=True))


def test_two_ranks_end_with_the_weights_of_one(found: dict[str, Trained]) -> None:
    """64 samples in batches of 16 on one rank, and of 8 on two; also converted to the workbench and then to DDP."""
    for name in (*WAYS, "DDP"):
        one, two = found[name]
        for rank in two:
            for mine, alone in zip(rank.weights, one.weights, strict=True):
                np.testing.assert_allclose(mine, alone, atol=1e-6, err_msg=name)


def test_what_is_printed_is_that_of_one_rank(found: dict[str, Trained]) -> None:
    """Sums over samples and means of batches, whatever divides them; of loaders that are not seen as such, too."""
    for name in PRINT_ALIKE:
        one, two = found[name]
        assert [each.output for each in two] == [one.output, ""], name


def test_ranks_stop_in_the_same_epoch(found: dict[str, Trained]) -> None:
    """By a validation loss, by which a scheduler sets the rates as well."""
    _, two = found["stops"]
    assert two[0].steps == two[1].steps < 99 * 4
    assert all((mine == other).all() for mine, other in zip(two[0].weights, two[1].weights, strict=True))


def test_a_mistake_is_a_difference(found: dict[str, Trained]) -> None:
    """A line of the converted script does nothing: the ranks do not train as one did, and it is said."""
    one, two = found["mistake"]
    comparison = Comparison([one], two)
    assert not comparison.agrees
    assert "✗ 2 ranks do not train as 1 rank did" in table(comparison)
