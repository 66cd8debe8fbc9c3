"""Our errors as TensorFlow's: scripts written for Horovod catch ``tf.errors``, and where ours are known catch those.

In a graph the error is one of TensorFlow's alone, with our text; eagerly it is both. They are made as TensorFlow's are,
(node, op, message), for AutoGraph makes them anew.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from workbench import errors


class MismatchError(errors.MismatchError, tf.errors.FailedPreconditionError):  # type: ignore[misc]  # untyped
    """Ranks submitted different shapes, dtypes, ops, roots or devices under one name."""

    __init__ = tf.errors.FailedPreconditionError.__init__


class NotInitializedError(errors.NotInitializedError, tf.errors.FailedPreconditionError):  # type: ignore[misc]
    """A verb was called before ``init()`` or after ``shutdown()``."""

    __init__ = tf.errors.FailedPreconditionError.__init__


class DuplicateNameError(errors.DuplicateNameError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """The same name was submitted twice before the first had finished."""

    __init__ = tf.errors.InvalidArgumentError.__init__


class UnsupportedTensorError(errors.UnsupportedTensorError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """A tensor whose dtype, layout or memory cannot be moved."""

    __init__ = tf.errors.InvalidArgumentError.__init__


class InvalidArgumentError(ValueError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """Arguments that do not fit: splits, or a root that does not take part."""

    __init__ = tf.errors.InvalidArgumentError.__init__


_OURS: tuple[tuple[type[Exception], type[Exception]], ...] = (
    (errors.MismatchError, MismatchError),
    (errors.NotInitializedError, NotInitializedError),
    (errors.DuplicateNameError, DuplicateNameError),
    (errors.UnsupportedTensorError, UnsupportedTensorError),
)


@contextmanager
def as_tensorflow_s() -> Iterator[None]:
    """Within the block, an error that TensorFlow has a class for is of that class, too."""
    try:
        yield
    except tf.errors.OpError:
        raise
    except (errors.WorkbenchError, ValueError) as error:
        for ours, both in _OURS:
            if isinstance(error, ours):
                raise both(None, None, str(error)) from None
        if type(error) is ValueError:
            raise InvalidArgumentError(None, None, str(error)) from None
        raise


def status_of(error: BaseException) -> tuple[int, str]:
    """TensorFlow's code for an error, as Horovod chooses it, and a text with the error's class."""
    text = f"{type(error).__name__}: {error}"
    if not isinstance(error, (errors.WorkbenchError, KeyboardInterrupt)):
        text += "\n" + "".join(traceback.format_exception(error))
    if isinstance(error, (errors.MismatchError, errors.NotInitializedError)):
        return tf.errors.FAILED_PRECONDITION, text
    if isinstance(error, (ValueError, TypeError)):
        return tf.errors.INVALID_ARGUMENT, text
    return (tf.errors.UNIMPLEMENTED if isinstance(error, NotImplementedError) else tf.errors.UNKNOWN), text
