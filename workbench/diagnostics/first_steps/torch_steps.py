"""What is seen of torch: optimizers and their steps, the first input after each step, loops over batches.

Everything goes by torch's own global hooks, or stands around a method; nothing is imported that the script does not.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from workbench.common.extras import loaded
from workbench.diagnostics.first_steps.imported import Watch, before, when_made
from workbench.diagnostics.first_steps.recorder import BATCHES_WITHOUT_STEP, STEPS_OF_AN_EPOCH, Recorder, hash_of


def watches(recorder: Recorder) -> dict[str, Watch]:
    """Modules of torch, and what is done when they have been imported."""
    watched = {
        "torch.optim.optimizer": _watch_optimizers,
        "torch.nn.modules.module": _watch_models,
        "torch.optim.lr_scheduler": _watch_plateau,
        "torch.utils.data.dataloader": _watch_loaders,
    }
    return {name: functools.partial(watch, recorder=recorder) for name, watch in watched.items()}


def _watch_optimizers(module: ModuleType, recorder: Recorder) -> None:
    """Of each one, where it is made and what it steps with."""
    when_made(module.Optimizer, recorder.made)
    module.register_optimizer_step_pre_hook(lambda optimizer, args, options: _step(optimizer, recorder))


def _watch_models(module: ModuleType, recorder: Recorder) -> None:
    """The first input after each step that a model in training gets."""

    def look(model: Any, inputs: tuple[Any, ...]) -> None:
        torch = loaded("torch")
        if not recorder.wants_batch or torch is None or not (model.training and torch.is_grad_enabled()):
            return
        tensors = list(_tensors(inputs))
        if tensors and recorder.mine and not torch.compiler.is_compiling():
            recorder.saw_batch(hash_of(map(_bytes, tensors)), model)

    module.register_module_forward_pre_hook(look)


def _step(optimizer: Any, recorder: Recorder) -> None:
    if not recorder.mine:
        return
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None and not weight.grad.is_sparse]
    missing, known = without_optimizer(recorder)
    recorder.step(
        optimizer,
        hash_of(map(_bytes, weights)),
        hash_of(map(_bytes, gradients)),
        framework="torch",
        sharded=any(hasattr(weight, "full_tensor") for weight in weights),
        missing=missing,
        known=known,
        device=_device(weights),
    )


def without_optimizer(recorder: Recorder) -> tuple[list[str], int]:
    """Parameters of the model that have a gradient and no optimizer, and how many have one."""
    model = recorder.model()
    if not hasattr(model, "named_parameters"):  # it is gone, or a layer of Keras
        return [], 0
    groups = [group for each in recorder.optimizers for group in getattr(each, "param_groups", ())]  # Keras' have none
    known = {id(w) for group in groups for w in group["params"]}
    learns = [(name, id(w)) for name, w in model.named_parameters() if w.grad is not None]
    return [name for name, number in learns if number not in known], sum(number in known for _, number in learns)


def _tensors(inputs: Iterable[Any]) -> Iterator[Any]:
    torch = loaded("torch")
    for each in inputs:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from _tensors(each)
        elif isinstance(each, dict):
            yield from _tensors(each.values())


def _bytes(tensor: Any) -> Any:
    torch = loaded("torch")
    tensor = tensor.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _device(weights: list[Any]) -> str:
    """The GPU of the first weight, by a name that no other GPU has; "" for the CPU or where there is but one."""
    torch = loaded("torch")
    device = weights[0].device if weights else None
    if device is None or device.type != "cuda" or torch.cuda.device_count() < 2:
        return ""
    about = torch.cuda.get_device_properties(device)
    return str(getattr(about, "uuid", device.index))


def _watch_loaders(module: ModuleType, recorder: Recorder) -> None:
    """Loops over batches: how long, in which epoch of the sampler, with how many steps. They are cut short."""
    plain = module.DataLoader.__iter__
    kept: list[Any] = []  # so that no id comes twice

    @functools.wraps(plain)
    def begin(loader: Any) -> Iterator[Any]:
        if not recorder.mine:
            return plain(loader)  # type: ignore[no-any-return]
        sampler = _sampler(loader)
        kept.append(loader if sampler is None else sampler)
        recorder.write(
            "loop",
            loader=id(kept[-1]),  # a script may make its loader anew in each epoch
            length=_length(loader),
            epoch=getattr(sampler, "epoch", None) if hasattr(sampler, "set_epoch") else None,
            shuffles=bool(getattr(sampler, "shuffle", False)),
            steps=recorder.steps,
        )
        return _short(plain(loader), recorder)

    module.DataLoader.__iter__ = begin


def _watch_plateau(module: ModuleType, recorder: Recorder) -> None:
    """What the scheduler is given by which it chooses the rate."""

    def look(scheduler: Any, metrics: Any, *_: Any, **__: Any) -> None:
        recorder.write("metric", value=float(metrics))

    before(module.ReduceLROnPlateau, "step", look)


def _sampler(loader: Any) -> Any:
    found = getattr(loader, "sampler", None)
    within = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return found if hasattr(found, "set_epoch") else within


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # a stream
        return None


def _short(batches: Iterator[Any], recorder: Recorder) -> Iterator[Any]:
    before = recorder.steps
    for count, batch in enumerate(batches, 1):
        yield batch
        if recorder.steps - before >= STEPS_OF_AN_EPOCH or (recorder.steps == before and count >= BATCHES_WITHOUT_STEP):
            return
