"""What a schedule is: a list of messages, each a list of pieces of layers' gradients; the most urgent message first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from workbench.simulate.steps import Span

Piece = tuple[int, int, int]
"""(layer, begin, end): ``gradient[begin:end]`` of a layer. Layers are numbered in forward order."""
Messages = list[list[Piece]]
BYTES = 4  # of a number: float32


def in_turn(layers: Sequence[Span]) -> Messages:
    """Each layer by itself, as backward finishes them.

    Example:
        >>> in_turn([Span("front", 1.0, 2.0, values=10), Span("back", 1.0, 2.0, values=20)])
        [[(1, 0, 20)], [(0, 0, 10)]]
    """
    return [[(i, 0, layer.values)] for i, layer in reversed(list(enumerate(layers))) if layer.values]


def nbytes(message: Sequence[Piece]) -> int:
    """How many a message carries."""
    return BYTES * sum(end - begin for _, begin, end in message)


def mistake(layers: Sequence[Span], messages: Any) -> str:
    """What is wrong with a schedule; empty if each gradient travels once.

    Example:
        >>> layers = [Span("front", 1.0, 2.0, values=10), Span("back", 1.0, 2.0, values=20)]
        >>> mistake(layers, [[(1, 0, 20)]])
        'gradients 0 to 10 of layer 0 (front) are in no message'
        >>> mistake(layers, [[(1, 0, 20), (0, 0, 10)], [(0, 5, 10)]])
        'gradients 5 to 10 of layer 0 (front) are in two messages, or twice in one'
    """
    if messages is None:
        return "it is None. Is there a return?"
    if not isinstance(messages, list | tuple):
        return f"it is {type(messages).__name__} and no list of messages"
    for number, message in enumerate(messages):
        if not isinstance(message, list | tuple) or not message:
            return f"message {number} is {message!r}: a list of at least one piece (layer, begin, end) is needed"
        for piece in message:
            if wrong := _bad_piece(layers, piece):
                return f"message {number} has the piece {piece!r}: {wrong}"
    return next(_uncovered(layers, messages), "")


def _bad_piece(layers: Sequence[Span], piece: Any) -> str:
    if not (isinstance(piece, list | tuple) and len(piece) == 3 and all(hasattr(each, "__index__") for each in piece)):
        return "three whole numbers (layer, begin, end) are needed"
    layer, begin, end = piece
    if not 0 <= layer < len(layers):
        return f"there are layers 0 to {len(layers) - 1}"
    if not 0 <= begin < end <= layers[layer].values:
        return f"layer {layer} has gradients 0 to {layers[layer].values:,}, and a piece at least one of them"
    return ""


def _uncovered(layers: Sequence[Span], messages: Sequence[Sequence[Piece]]) -> Iterator[str]:
    for i, layer in enumerate(layers):
        mine = sorted((begin, end) for message in messages for one, begin, end in message if one == i)
        whole = [(0, 0), *mine, (layer.values, layer.values)]
        for (_, until), (begin, end) in pairwise(whole):
            if begin > until:
                yield f"gradients {until} to {begin} of layer {i} ({layer.name}) are in no message"
            elif begin < until:
                overlap = min(until, end)
                if overlap > begin:
                    yield (
                        f"gradients {begin} to {overlap} of layer {i} ({layer.name}) are in two messages, "
                        "or twice in one"
                    )
