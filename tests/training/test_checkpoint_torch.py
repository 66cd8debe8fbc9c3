"""Checkpoints of TorchState: tensors, optimizers, schedulers and models come back to the bit, and train on so."""

from __future__ import annotations

import copy
import inspect
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thorough import quick

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("workbench.torch")

from workbench.elastic import ObjectState  # noqa: E402 - not without torch
from workbench.errors import CheckpointError  # noqa: E402
from workbench.torch import elastic  # noqa: E402
from workbench.torch.elastic.stored import TENSORS  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def dynamo() -> None:
    """Torch imports it with the first optimizer; it takes seconds, which need not be those of a test's own call."""
    pytest.importorskip("torch._dynamo")


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of this process alone."""
    monkeypatch.setenv("WORKBENCH_HEARTBEAT_S", "0.1")
    hvd.init()
    yield
    hvd.shutdown()


def same(one: Any, two: Any) -> bool:
    """Equal in type, order, bits and layout."""
    if type(one) is not type(two):
        return False
    if isinstance(one, torch.Tensor):
        bits = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, two)]
        about = [(each.dtype, each.shape, each.stride(), each.requires_grad) for each in (one, two)]
        return about[0] == about[1] and torch.equal(*bits)
    if isinstance(one, dict):
        return same(list(one.items()), list(two.items())) and same(
            getattr(one, "_metadata", None), getattr(two, "_metadata", None)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def written(folder: Path, **values: Any) -> Any:
    """Commit a state, write it, and read it back."""
    state = elastic.TorchState(**values)
    state.checkpoint(folder)
    state.commit()
    state.finish()
    return elastic.read_checkpoint(folder)


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
    *(torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (2, 3, 4, 5)], ids=str)
def test_tensors_come_back_to_the_bit(dtype: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Every dtype, bfloat16 and 8 bits too; every shape; channels that are last stay there."""
    source = (torch.rand(shape) > 0.5) if dtype is torch.bool else (torch.randn(shape) * 9).to(torch.float64).to(dtype)
    values = {"x": source, "nested": [(source, {3: source})]}
    if len(shape) == 4:
        values["last"] = source.contiguous(memory_format=torch.channels_last)
        values["volumes"] = source[None].contiguous(memory_format=torch.channels_last_3d)
    found = written(tmp_path, **values)
    assert all(same(found[name], value) for name, value in values.items())


def test_views_conjugates_and_those_that_need_a_gradient(tmp_path: Path) -> None:
    """A slice brings its own numbers only; a tensor that needs a gradient still does."""
    values = {
        "slice": torch.arange(10.0)[2:8:2],
        "turned": torch.arange(6).reshape(2, 3).T,
        "conj": torch.tensor([1 + 2j]).conj(),
        "grad": torch.ones(2, requires_grad=True),
    }
    found = written(tmp_path, **values)
    assert all(torch.equal(found[name], value.resolve_conj()) for name, value in values.items())
    assert found["grad"].requires_grad
    assert not found["slice"].requires_grad


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.eye(2).to_sparse(), r"'x' is a torch.sparse_coo tensor"),
        (torch.empty(2, device="meta"), "'x' is a torch.strided tensor of torch.float32 on meta"),
        (torch.nn.Parameter(torch.ones(1)), "'x' is a Parameter"),
    ],
    ids=["sparse", "meta", "parameter"],
)
def test_other_tensors_are_refused_by_name(value: Any, said: str, tmp_path: Path) -> None:
    """When the folder is given."""
    state = elastic.TorchState(x=value)
    with pytest.raises(CheckpointError, match=said):
        state.checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", ["Tensor", "nn", "load", "float33"])
def test_a_dtype_is_a_dtype(dtype: str) -> None:
    """No other name of torch is taken for one."""
    import numpy as np

    with pytest.raises((ValueError, AttributeError)):
        TENSORS.give({"dtype": dtype, "shape": [1]}, np.zeros(4, np.uint8))


def test_tensors_in_a_state_without_torch_are_refused(tmp_path: Path) -> None:
    """An ObjectState knows numpy's arrays only, and says what to do."""
    state = ObjectState(lambda obj: obj, lambda: 0, x=torch.ones(1))
    with pytest.raises(CheckpointError, match="'x' is of type Tensor"):
        state.checkpoint(tmp_path)


def test_a_handler_of_one_s_own_is_refused_by_name(tmp_path: Path) -> None:
    """Unless it has a state_dict."""

    class Tape:
        pass

    class TapeHandler(elastic.StateHandler):
        def save(self) -> None:
            pass

    before = list(elastic.get_handler_registry())
    elastic.set_handler_registry([(Tape, TapeHandler), *before])
    try:
        state = elastic.TorchState(tape=Tape())
        with pytest.raises(CheckpointError, match=r"'tape' has a TapeHandler: .* StateDictHandler"):
            state.checkpoint(tmp_path)
    finally:
        elastic.set_handler_registry(before)


# --- training goes on ---------------------------------------------------------------------------------

OPTIMIZERS = sorted(
    (kind for kind in vars(torch.optim).values() if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)),
    key=lambda kind: kind.__name__,
)
OPTIMIZERS.remove(torch.optim.Optimizer)


class Net(torch.nn.Module):
    """Weights in two precisions, running statistics, and a state that is no tensor."""

    said = "nothing"

    def __init__(self, low: Any) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.low = torch.nn.Parameter(torch.randn(4, 2).to(low))

    def forward(self, x: Any) -> Any:
        return self.norm(self.first(x)) @ self.low.float()

    def get_extra_state(self) -> Any:
        return {"said": self.said}

    def set_extra_state(self, state: Any) -> None:
        self.said = state["said"]


class Training:
    """A model, an optimizer, a scheduler, and steps that are the same whenever they are taken."""

    def __init__(self, kind: Any, wrapped: bool, seed: int) -> None:
        torch.manual_seed(seed)
        # Where parameters are of 16 bits, these two of torch's load a number of 32 bits in 16 as well.
        self.net = Net(torch.float32 if kind in (torch.optim.ASGD, torch.optim.NAdam) else torch.bfloat16)
        params = [self.net.first.weight] if kind.__name__ in ("Muon", "SparseAdam") else [*self.net.parameters()]
        if kind is torch.optim.LBFGS:
            params = [*self.net.first.parameters()]
        more = {"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}
        self.optimizer = kind(params, lr=0.01, **more)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4], 0.5)
        if wrapped:
            named = [(name, each) for name, each in self.net.named_parameters() if any(each is p for p in params)]
            self.wrapped = hvd.DistributedOptimizer(self.optimizer, named_parameters=named)
        else:
            self.wrapped = self.optimizer
        self.sparse = kind is torch.optim.SparseAdam
        self.state = elastic.TorchState(self.net, self.wrapped, scheduler=self.scheduler, step=0)

    def step(self) -> None:
        """One step on data that the step's number decides."""
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(self.state.step))

        def closure() -> Any:
            self.wrapped.zero_grad()
            loss = self.net(x).square().sum()
            loss.backward()
            if self.sparse:
                self.net.first.weight.grad = self.net.first.weight.grad.to_sparse()
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.wrapped.step(closure)
        else:
            closure()
            self.wrapped.step()
        self.scheduler.step()
        self.net.said = f"step {self.state.step}"
        self.state.step += 1
        self.state.commit()

    def everything(self) -> Any:
        """All that there is."""
        parts = [self.net.state_dict(), self.wrapped.state_dict(), self.scheduler.state_dict(), self.state.step]
        return copy.deepcopy(parts)


@pytest.mark.long
@pytest.mark.parametrize("wrapped", quick([True, False], True))
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_a_new_process_would_train_on_as_the_old_one(kind: Any, wrapped: bool, tmp_path: Path) -> None:
    """Other weights at first; after the sync all is equal to the bit, and after more steps too."""
    if wrapped and kind is torch.optim.SparseAdam:
        pytest.skip("its gradients are set by hand here")
    old = Training(kind, wrapped, seed=1)
    old.state.checkpoint(tmp_path, every=3)
    for _ in range(3):
        old.step()
    old.state.finish()
    committed = old.everything()
    assert same(elastic.read_checkpoint(tmp_path)["optimizer"], committed[1])
    shutil.copytree(tmp_path, tmp_path / "then")  # the old one writes on
    for _ in range(3):
        old.step()
    old.state.finish()
    new = Training(kind, wrapped, seed=2)
    new.state.checkpoint(tmp_path / "then", every=100)
    new.state.sync()
    assert same(new.everything(), committed)
    assert new.net.said == "step 2"
    for _ in range(3):
        new.step()
    assert same(new.everything(), old.everything())


def test_samplers_and_scalers_come_back(tmp_path: Path) -> None:
    """How far the epoch has come, and the scale of mixed precision."""
    sampler = elastic.ElasticSampler(range(10), seed=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    sampler.set_epoch(2)
    sampler.record_batch(0, 3)
    written(tmp_path, sampler=sampler, scaler=scaler)
    again = elastic.TorchState(
        sampler=elastic.ElasticSampler(range(10), seed=4), scaler=torch.amp.GradScaler("cpu", init_scale=2.0)
    )
    again.checkpoint(tmp_path)
    again.sync()
    assert (again.sampler.epoch, again.sampler.processed_num) == (2, 3)
    assert list(again.sampler) == list(sampler)[3:]
    again.scaler.scale(torch.ones(1))
    assert again.scaler.get_scale() == 8.0


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            lambda: torch.nn.Linear(3, 5),
            r"model\['weight'\] is float32, shape \(4, 3\) there and float32, shape \(5, 3\)",
        ),
        (lambda: torch.nn.Linear(3, 4).bfloat16(), "is float32, .* there and bfloat16"),
        (lambda: torch.nn.Linear(3, 4, bias=False), r"model\['bias'\] \(float32, shape \(4,\)\) is not of this model"),
        (lambda: torch.nn.Bilinear(3, 3, 4), r"shape \(4, 3\) there and float32, shape \(4, 3, 3\) here"),
        (lambda: torch.nn.Sequential(torch.nn.Linear(3, 4)), r"model\['0.weight'\] .* is missing"),
    ],
    ids=["shape", "dtype", "fewer", "dims", "names"],
)
def test_a_checkpoint_of_another_model_is_refused(other: Any, said: str, tmp_path: Path) -> None:
    """The arrays that differ are named; weights in memory and the folder stay as they are."""
    written(tmp_path, model=torch.nn.Linear(3, 4))
    model = other()
    before = copy.deepcopy(model.state_dict())
    state = elastic.TorchState(model=model)
    state.checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=f"to another training: .*{said}"):
        state.sync()
    assert same(model.state_dict(), before)
    assert list(elastic.read_checkpoint(tmp_path)["model"]) == ["weight", "bias"]


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    """What load_state_dict() says is told."""
    model = torch.nn.Linear(3, 4)
    written(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state = elastic.TorchState(model, torch.optim.SGD([model.weight], lr=0.1))
    state.checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"to another training: ValueError: .*size"):
        state.sync()
