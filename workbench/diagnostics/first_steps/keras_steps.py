"""What is seen of Keras 3 and TensorFlow 2: optimizers and their steps, the first input after each, ``fit`` cut short.

A ``tf.function`` is run as it is written, so that each step is seen, and not only the one that is traced. Of the graphs
of TensorFlow 1 nothing is seen but that there is one.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from workbench.common.extras import loaded
from workbench.diagnostics.first_steps.imported import Watch, before, when_made
from workbench.diagnostics.first_steps.recorder import MOST_STEPS, STEPS_OF_AN_EPOCH, Recorder, hash_of, world


def watches(recorder: Recorder) -> dict[str, Watch]:
    """Modules of Keras and TensorFlow, and what is done when they have been imported."""
    watched = {
        "tensorflow.python.client.session": _watch_sessions,
        "keras.src.optimizers.base_optimizer": _watch_optimizers,
        "keras.src.layers.layer": _watch_layers,
        **{f"keras.src.backend.{name}.trainer": _watch_fit for name in ("tensorflow", "torch", "jax")},
    }
    return {
        "tensorflow": _run_as_written,
        **{name: functools.partial(watch, recorder=recorder) for name, watch in watched.items()},
    }


def _watch_optimizers(module: ModuleType, recorder: Recorder) -> None:
    """Of each one, where it is made and what it steps with."""

    def look(optimizer: Any, grads: Any, trainable_variables: Any = None) -> None:
        found = getattr(optimizer, "_trainable_variables", []) if trainable_variables is None else trainable_variables
        values, slopes = _arrays([each.value for each in found]), _arrays(grads)
        if values is not None and slopes is not None:
            recorder.step(optimizer, hash_of(values), hash_of(slopes), framework="keras", sharded=False)

    when_made(module.BaseOptimizer, recorder.made)
    before(module.BaseOptimizer, "apply", look)


def _watch_layers(module: ModuleType, recorder: Recorder) -> None:
    """The first input after each step that a layer gets, which is the model's."""

    def look(layer: Any, *args: Any, **options: Any) -> None:
        if recorder.wants_batch and recorder.mine and args and options.get("training") is not False:
            found = _arrays(args[:1])
            if found:
                recorder.saw_batch(hash_of(found), layer)

    before(module.Layer, "__call__", look)


def _arrays(tensors: Iterable[Any]) -> list[Any] | None:
    """As arrays; None if one is not there yet, as within a graph. Those that are None or sparse are left out."""
    import numpy as np  # here alone: each start of a rank imports this module

    found: list[Any] = []
    for each in tensors:
        if isinstance(each, (list, tuple)):
            within = _arrays(each)
            if within is None:
                return None
            found += within
            continue
        each = each.detach().cpu() if hasattr(each, "detach") else each
        if each is None or hasattr(each, "dense_shape"):
            continue
        if not hasattr(each, "numpy") and not hasattr(each, "tobytes"):
            return None
        try:
            array = np.asarray(each.numpy() if hasattr(each, "numpy") else each)
        except (AttributeError, NotImplementedError, TypeError):  # of a graph, or traced by JAX
            return None
        found.append(array.copy(order="C").view("u1") if array.ndim else array.reshape(1).view("u1"))
    return found


def _run_as_written(tf: ModuleType) -> None:
    warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run_functions_eagerly`")
    tf.config.run_functions_eagerly(True)


def _watch_sessions(module: ModuleType, recorder: Recorder) -> None:
    """A session of TensorFlow 1 ends the program when it has run often enough."""
    runs = itertools.count(1)

    def look(*_: Any, **__: Any) -> None:
        run = next(runs)
        if run == 1:
            recorder.write("graph", **world())
        if run > 4 * MOST_STEPS and recorder.mine:
            raise SystemExit(0)

    before(module.BaseSession, "run", look)


def _watch_fit(module: ModuleType, recorder: Recorder) -> None:
    """``fit`` with one callback more, which ends it after a few batches."""
    for trainer in vars(module).values():
        if isinstance(trainer, type) and "fit" in vars(trainer):
            vars_of = inspect.signature(trainer.fit)  # type: ignore[attr-defined]
            trainer.fit = _short(trainer.fit, vars_of, recorder)  # type: ignore[attr-defined]


def _short(plain: Callable[..., Any], signature: inspect.Signature, recorder: Recorder) -> Callable[..., Any]:
    @functools.wraps(plain)
    def fit(*args: Any, **options: Any) -> Any:
        bound = signature.bind(*args, **options)
        given = bound.arguments.get("callbacks") or ()
        given = [given] if isinstance(given, loaded("keras").callbacks.Callback) else given
        if isinstance(given, (list, tuple)):
            bound.arguments["callbacks"] = [*given, _stopper(recorder)]
        return plain(*bound.args, **bound.kwargs)

    return fit


def _stopper(recorder: Recorder) -> Any:
    keras = loaded("keras")

    class Stopper(keras.callbacks.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        """Ends ``fit``, and an evaluation in it, after a few batches."""

        def on_train_begin(self, logs: Any = None) -> None:
            """How long an epoch would be."""
            if keras.backend.backend() == "jax":  # its steps are compiled
                recorder.write("graph", **world())
            recorder.write("loop", loader=0, length=self.params.get("steps"), epoch=None, shuffles=False, steps=0)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch + 1 >= STEPS_OF_AN_EPOCH:
                self.model.stop_training = True

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch + 1 >= STEPS_OF_AN_EPOCH:
                self.model.stop_evaluating = True

    return Stopper()
