"""Runs a script for some steps, and records the loss of each and the weights at the end.

What is random is made comparable, in both runs alike: the same seeds at the start; samples shuffled into the same
order, of which each rank takes its share; no dropout, since the masks of two ranks are others than those of one.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import tempfile
import traceback
import types
from pathlib import Path

import numpy as np

from workbench.convert.check.record import SEED, Enough, Record


def record(text: str, path: str, words: list[str], steps: int) -> Record:
    """Run a script in this process.

    Args:
        text: the script, which may be a converted one.
        path: where the original is: it finds its neighbours there.
        words: its arguments.
        steps: how many at most.
    """
    found, output = Record(), io.StringIO()
    sys.argv = [path, *words]
    sys.path.insert(0, os.path.dirname(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    random.seed(SEED)
    np.random.seed(SEED)
    with contextlib.redirect_stdout(output), contextlib.ExitStack() as stack:
        # tf.function and torch.compile read the lines of a function again, from this file.
        code = Path(stack.enter_context(tempfile.TemporaryDirectory())) / os.path.basename(path)
        code.write_text(text, encoding="utf-8")
        try:
            if "torch" in text:
                from workbench.convert.check import torch_recording

                stack.enter_context(torch_recording.recording(found, steps))
            if "keras" in text or "tensorflow" in text:
                from workbench.convert.check import keras_recording

                stack.enter_context(keras_recording.recording(found, steps))
            exec(compile(text, str(code), "exec"), module.__dict__)
        except (Enough, SystemExit):
            pass
        except Exception:  # noqa: BLE001 - whatever the script raises is a part of what is recorded
            found.error = traceback.format_exc()
    found.output = output.getvalue()
    return found
