"""TorchState in a world of one: whatever is trained goes on from its commit, for every optimizer and scheduler."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from thorough import quick
from with_extra import WithExtra

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("workbench.torch")
elastic = pytest.importorskip("workbench.torch.elastic")
TorchState = elastic.TorchState


@pytest.fixture(scope="module", autouse=True)
def dynamo() -> None:
    """Torch imports it with the first optimizer; it takes seconds, which need not be those of a test's own call."""
    pytest.importorskip("torch._dynamo")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of this process alone."""
    monkeypatch.setenv("WORKBENCH_HEARTBEAT_S", "0.1")
    hvd.init()
    yield
    hvd.shutdown()


OPTIMIZERS = sorted(
    (kind for kind in vars(torch.optim).values() if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)),
    key=lambda kind: kind.__name__,
)
OPTIMIZERS.remove(torch.optim.Optimizer)


def optimizer_of(kind: Any, params: list[Any]) -> Any:
    """An optimizer with momentum where it has one."""
    return kind(params, lr=0.01, **({"momentum": 0.9} if kind in (torch.optim.SGD, torch.optim.RMSprop) else {}))


def step(optimizer: Any, weight: Any, number: int) -> None:
    """One step along a known gradient."""

    def closure() -> Any:
        optimizer.zero_grad()
        loss = ((weight - number) ** 2).sum()
        grad = 2 * (weight.detach() - number)
        weight.grad = grad.to_sparse() if isinstance(optimizer, torch.optim.SparseAdam) else grad
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


@pytest.mark.parametrize("wrapped", quick([True, False], False))
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_every_optimizer_goes_on_from_its_commit(kind: Any, wrapped: bool, world: None) -> None:
    """After two restores in a row, each step is the same as without them: nothing works in the saved copy."""
    if wrapped and kind is torch.optim.SparseAdam:
        pytest.skip("its gradients are set by hand here")
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2, bias=False)  # of float64 torch's NAdam loads a counter in another precision
    weight = model.weight
    optimizer = optimizer_of(kind, [weight])
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = TorchState(model, optimizer, step=0)
    for number in range(3):
        step(optimizer, weight, number)
    state.commit()
    undisturbed = []
    for number in range(3, 6):
        step(optimizer, weight, number)
        undisturbed.append(weight.detach().clone())
    for _ in range(2):
        state.restore()
        assert weight.grad is None
        again = []
        for number in range(3, 6):
            step(optimizer, weight, number)
            again.append(weight.detach().clone())
        assert torch.equal(torch.stack(again), torch.stack(undisturbed))


def test_models_are_restored_in_place_with_buffers_and_extra_state(world: None) -> None:
    """Parameters stay the same objects; buffers and extra state come back, also after a sync; gradients do not."""
    model = torch.nn.Sequential(WithExtra(2, 2), torch.nn.BatchNorm1d(2))
    state = TorchState(model=model)
    before, params = copy.deepcopy(model.state_dict()), list(model.parameters())
    state.sync()
    model[0].said = "something"
    model(torch.randn(4, 2)).sum().backward()
    with torch.no_grad():
        for param in params:
            param.add_(1.0)
    state.restore()
    assert model[0].said == "nothing"
    assert all(ours is theirs for ours, theirs in zip(model.parameters(), params, strict=True))
    assert all(param.grad is None for param in params)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) if isinstance(value, torch.Tensor) else value == before[name]


def test_gradients_are_forgotten_with_the_optimizer_alone(world: None) -> None:
    """A state that holds the optimizer and not the model drops the gradients of a failed step, too."""
    model = torch.nn.Linear(1, 1)
    state = TorchState(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(1, 1)).sum().backward()
    state.restore()
    assert [param.grad for param in model.parameters()] == [None, None]


def test_a_synchronize_without_its_step_is_forgotten(world: None) -> None:
    """A failure between synchronize() and step() leaves no trace: the next step does not warn of it."""
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    state = TorchState(model, optimizer)
    optimizer.synchronize()
    state.restore()
    state.on_reset()
    optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.5)], [3]
        ),
    ],
    ids=["StepLR", "LambdaLR", "OneCycleLR", "WarmRestarts", "CyclicLR", "SequentialLR"],
)
def test_schedulers_go_on_from_their_commit(make: Any, world: None) -> None:
    """Whatever has a state_dict is kept: the learning rates after a restore are those of the undisturbed run."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    state = TorchState(model, optimizer, scheduler=scheduler)
    state.sync()

    def rates() -> list[float]:
        found = []
        for _ in range(4):
            step(optimizer, model.weight, 1)
            scheduler.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    rates()
    state.commit()
    undisturbed = rates()
    for _ in range(2):
        state.restore()
        assert rates() == undisturbed
    assert state.scheduler is scheduler


def test_a_grad_scaler_is_kept(world: None) -> None:
    """So is the scale of mixed precision."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    state = TorchState(scaler=scaler)
    scaler.update(2.0)
    state.restore()
    assert scaler.get_scale() == 8.0


def test_attributes_have_any_name_of_the_callers(world: None) -> None:
    """A counter of commits is the script's, and so is a module with a name of exact mode; only that mode refuses it."""
    model = torch.nn.Linear(1, 1)
    state = TorchState(model, batch=0, epoch=0, commits=0, exact=1, shards=torch.nn.Linear(1, 1), checkpoint="x")
    state.commits, state.exact = 1, 2
    state.commit()
    with torch.no_grad():
        before = state.shards.weight.add_(1).clone()
    state.commits, state.exact, state.checkpoint = 3, 3, "y"
    state.commit()
    with torch.no_grad():
        state.shards.weight.add_(1)
    state.commits = 4
    state.restore()
    assert (state.commits, state.exact, state.checkpoint) == (3, 3, "y")
    assert torch.equal(state.shards.weight, before)
    with pytest.raises(ValueError, match=r"needs state\.exact: give the attribute of this name another one"):
        elastic.run(exact=True)(lambda state: None)(state)


@pytest.mark.parametrize("name", ["sync", "commit", "save"])
def test_names_of_the_state_itself_are_refused(name: str, world: None) -> None:
    """A model must not hide a method."""
    with pytest.raises(ValueError, match=f"'{name}' is used by TorchState itself"):
        TorchState(**{name: torch.nn.Linear(1, 1)})


def test_the_base_class_of_handlers_says_what_to_write() -> None:
    """A handler that forgets a method is told so."""
    handler = elastic.StateHandler(1)
    for method in (handler.save, handler.restore, handler.sync):
        with pytest.raises(NotImplementedError):
            method()


def test_none_is_a_plain_attribute(world: None) -> None:
    """Model and optimizer may be missing; then they are None, and nothing is kept of them."""
    state = TorchState(epoch=1)
    state.sync()
    state.restore()
    assert (state.model, state.optimizer, state.epoch) == (None, None, 1)


def test_another_model_takes_the_place(world: None) -> None:
    """A model that is assigned to the attribute is saved at once, and restored from then on."""
    first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    state = TorchState(model=first, x=0)
    wanted = second.weight.item()
    state.model = second
    with torch.no_grad():
        second.weight.add_(1.0)
    state.restore()
    assert state.model is second
    assert second.weight.item() == wanted


def test_handlers_of_one_s_own(world: None) -> None:
    """A type that is registered gets its handler, the first that fits; the registry can be replaced as a whole."""

    class Tape:
        def __init__(self) -> None:
            self.heard: list[str] = []

    class TapeHandler(elastic.StateHandler):
        def save(self) -> None:
            self.value.heard.append("save")

        def restore(self) -> None:
            self.value.heard.append("restore")

        def sync(self) -> None:
            self.value.heard.append("sync")

    before = list(elastic.get_handler_registry())
    elastic.set_handler_registry([(Tape, TapeHandler), *before])
    try:
        state = TorchState(tape=Tape(), n=1)
        state.sync()
        state.restore()
        state.on_reset()
        state.tape = tape = Tape()
        state.commit()
        assert tape.heard == ["save", "save"]
        elastic.get_handler_registry().clear()
        assert TorchState(model=torch.nn.Linear(1, 1))._names == ("model", "optimizer")
    finally:
        elastic.set_handler_registry(before)
    assert elastic.get_handler_registry() == before


def test_the_loop_in_a_world_of_one(world: None) -> None:
    """A real reset, with shutdown() and init(): the training ends with the weights of the undisturbed run."""

    def train_with(failures: set[int]) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        @elastic.run
        def train(state: Any) -> Any:
            while state.step < 6:
                x = torch.full((3, 2), float(state.step), dtype=torch.float64)
                model(x).square().sum().backward()
                if state.step in failures:
                    failures.remove(state.step)
                    raise hvd.HorovodInternalError("it failed")
                optimizer.step()
                optimizer.zero_grad()
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
            return model.weight.detach().clone()

        return train(TorchState(model, optimizer, step=0))

    assert torch.equal(train_with({1, 4, 5}), train_with(set()))


class OfAllRanks:
    """Its state is gathered from all ranks, as a sharded optimizer's; ``lost``: one of them is not there any more."""

    lost = False

    def state_dict(self) -> dict[str, int]:
        """Gather."""
        if self.lost:
            raise hvd.HorovodInternalError("rank 1 was lost")
        return {"step": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Nothing to do."""


def test_a_commit_that_breaks_off_changes_nothing(world: None) -> None:
    """Where a rank is lost amid a commit, model and optimizer go back to the commit before it, both of them."""
    model, optimizer = torch.nn.Linear(2, 2), OfAllRanks()
    state = TorchState(model=model, optimizer=optimizer, batch=1)
    state.save()
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.weight.add_(1.0)
    state.batch, optimizer.lost = 2, True
    with pytest.raises(hvd.HorovodInternalError, match="rank 1 was lost"):
        state.commit()
    optimizer.lost = False
    state.restore()
    assert state.batch == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
