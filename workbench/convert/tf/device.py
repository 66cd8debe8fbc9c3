"""Step 3 in TensorFlow, and what both kinds of scripts must not have."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from workbench.convert import randomness
from workbench.convert.script import Script, argument
from workbench.convert.source import Reason

PIN = """\
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")"""


def refused(script: Script) -> Iterator[Reason]:
    """What is not converted, with the reasons."""
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        if name.startswith("tensorflow.distribute."):
            yield script.reason(call, "this is for tf.distribute, which shares the work itself: remove it.")
        if name.startswith("tensorflow.compat.v1."):
            yield script.reason(call, "this is for TensorFlow 1; examples/tensorflow_mnist_v1.py shows it by hand.")
        if name.endswith("Dataset.list_files") and (
            (shuffle := argument(call, 1, "shuffle")) is None or script.text(shuffle.value) != "False"
        ):
            yield script.reason(call, "list_files() shuffles on each rank by itself: shuffle=False.")
        compiled = argument(call, None, "jit_compile")
        if compiled is not None and script.text(compiled.value) == "True":
            yield script.reason(call, "jit_compile=True: XLA cannot call the collectives. Leave it out.")
    for text in script.all(cst.SimpleString):
        if text.evaluated_value in ("/GPU:0", "/gpu:0", "GPU:0"):
            yield script.reason(text, f"{text.value}: with one visible GPU no device needs a name. Leave it out.")
    yield from randomness.refused(script)
    names = {script.meaning(call.func).rpartition(".")[2] for call in script.all(cst.Call)}
    if not names & {"set_seed", "set_random_seed"}:
        for call in script.all(cst.Call):
            name = script.meaning(call.func)
            if name.startswith(("tensorflow.random.", "keras.random.")) and argument(call, None, "seed") is None:
                yield script.reason(
                    call, "without a seed each rank draws other numbers: keras.utils.set_random_seed(…)."
                )
