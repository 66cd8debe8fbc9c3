"""Right answers of lesson 16 that are unlike the official ones."""

from __future__ import annotations

import statistics
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from workbench.course.schedules.played import play


def by_a_matrix(ranks, short, long):  # Two equations with two unknowns, solved by numpy.
    steps = 2 * (ranks - 1)
    known = np.array([[steps, steps * nbytes / ranks] for nbytes, _ in (short, long)])
    latency_s, per_byte_s = np.linalg.solve(known, [np.median(times) for _, times in (short, long)])
    if per_byte_s < 0: return float(np.median(short[1]) / steps), 0.0
    return max(0.0, float(latency_s)), float(per_byte_s)
def by_the_quickest(ranks, short, long):  # The quickest repetition was disturbed least.
    quick, slow = min(short[1]), min(long[1])
    chunk, steps = (long[0] - short[0]) / ranks, 2 * ranks - 2
    slope = max(slow - quick, 0.0) / steps / chunk
    return max(quick / steps - slope * short[0] / ranks, 0.0), slope
def by_events(layers, reduce_s):  # First when each layer is ready, then the network.
    back = layers[::-1]
    forward_s = sum(layer.forward_s for layer in layers)
    ready = [forward_s + seconds for seconds in accumulate(layer.backward_s for layer in back)]
    arrived = [0.0]
    for layer, at_s in zip(back, ready, strict=True):
        if layer.values > 0: arrived.append(max(arrived[-1], at_s) + reduce_s(layer.values * 4))
    return max(arrived[-1], ready[-1])
def by_what_is_left(layers, reduce_s):  # The longest path: computing up to a layer, then the messages from that one on.
    costs = [reduce_s(4 * layer.values) if layer.values else 0.0 for layer in layers]
    computed = sum(layer.forward_s for layer in layers)
    ends = []
    for i in reversed(range(len(layers))):
        computed += layers[i].backward_s
        ends.append(computed + (sum(costs[: i + 1]) if layers[i].values else 0.0))
    return max(*ends, computed)
def bound_in_one_pass(layers, reduce_s):  # With running sums.
    left_s, values, best = sum(one.forward_s + one.backward_s for one in layers), 0, 0.0
    for layer in layers:
        values += layer.values
        best = max(best, left_s + (reduce_s(4 * values) if values else 0.0))
        left_s -= layer.forward_s + layer.backward_s
    return best
def bound_by_numpy(layers, reduce_s):  # As arrays.
    seconds = np.array([one.forward_s + one.backward_s for one in layers])
    nbytes = 4 * np.cumsum([one.values for one in layers])
    behind = np.cumsum(seconds[::-1])[::-1]
    return float(
        max(after + (reduce_s(float(many)) if many else 0.0) for after, many in zip(behind, nbytes, strict=True))
    )
def _greedy(layers, largest, together):
    """From the front on, filled up to a size; a layer is cut wherever a message is full."""
    messages: list[list[tuple[int, int, int]]] = []
    room = 0
    for i, layer in enumerate(layers):
        begin = 0
        while begin < layer.values:
            if not messages or room <= 0 or (layer.values - begin > room and layer.values > largest):
                messages.append([])
                room = together
            end = min(layer.values, begin + max(1, min(largest, room) if layer.values > largest else layer.values))
            messages[-1].append((i, begin, end))
            room -= end - begin
            begin = end
    return messages
def filled_up(layers, reduce_s):  # Messages of one size, from the front on; the sizes tried are powers of two.
    total = sum(layer.values for layer in layers)
    sizes = [max(1, total >> power) for power in (0, 2, 3, 4, 5, 6)]
    tried = [_greedy(layers, largest, together) for largest in sizes for together in sizes if together <= largest]
    return min(tried, key=lambda messages: play(layers, messages, reduce_s).step_s)
def improved_in_steps(layers, reduce_s):
    """Begins with the front layers first, each whole, and joins or halves messages as long as that helps."""
    def took(messages): return play(layers, messages, reduce_s).step_s
    total = sum(layer.values for layer in layers)
    starts = [_greedy(layers, max(1, total >> power), max(1, total >> power)) for power in (0, 3, 4, 5, 6)]
    best: Any = min(starts, key=took)
    for i in reversed(range(min(6, len(best) - 1))):
        best = min(best, [*best[:i], best[i] + best[i + 1], *best[i + 2 :]], key=took)
    return best
def as_an_array_of_two(ranks, short, long):  # Both constants in one array, and no pair.
    (few, quick), (many, slow) = ((nbytes, np.median(times)) for nbytes, times in (short, long))
    steps = 2 * (ranks - 1)
    slope = max(0.0, (slow - quick) / (many - few))
    return np.maximum(0.0, np.array([(quick - slope * few) / steps, slope * ranks / steps]))
def by_a_line(ranks, short, long):  # np.polyfit through the medians; the seconds of one step.
    steps = 2 * (ranks - 1)
    sizes = np.array([short[0], long[0]]) / ranks
    seconds = [statistics.median(times) / steps for _, times in (short, long)]
    slope, start = np.polyfit(sizes, seconds, 1)
    if slope < 0: slope, start = 0.0, seconds[0]
    return max(start, 0.0), slope
def by_the_lower_quartile(ranks, short, long):  # The mean of the quicker half, which nobody has disturbed.
    def undisturbed(times):
        quick = sorted(times)[: (len(times) + 1) // 2]
        return sum(quick) / len(quick) / (2 * ranks - 2)
    (few, quick), (many, slow) = ((nbytes / ranks, undisturbed(times)) for nbytes, times in (short, long))
    per_byte = max((slow - quick) / (many - few), 0)
    return [max(quick - per_byte * few, 0), per_byte]
def in_one_loop(layers, reduce_s):  # Two clocks: one of computing, one of the network.
    clock = sum([layer.forward_s for layer in layers])
    network = 0.0
    for layer in reversed(layers):
        clock += layer.backward_s
        if layer.values: network = max(network, clock) + reduce_s(4 * layer.values)
    return network if network > clock else clock
def by_recursion(layers, reduce_s):  # When the network is free after a layer depends on the layer behind it.
    forward_s = np.sum([layer.forward_s for layer in layers])
    def after(i):
        if i == len(layers): return forward_s, 0.0
        ready, free = after(i + 1)
        ready = ready + layers[i].backward_s
        if not layers[i].values: return ready, free
        return ready, max(ready, free) + reduce_s(layers[i].values * 4)
    return np.float64(max(after(0)))
def bound_by_definition(layers, reduce_s):  # A list of the bounds, and its maximum.
    bounds = []
    for i in range(len(layers)):
        values = sum(layer.values for layer in layers[: i + 1])
        computing = sum(layer.forward_s for layer in layers[i:]) + sum(layer.backward_s for layer in layers[i:])
        bounds.append(computing + (reduce_s(4 * values) if values else 0))
    return max(bounds)
def bound_from_the_end(layers, reduce_s):  # From the last layer on; bytes are taken away, seconds added.
    nbytes = sum(4 * layer.values for layer in layers)
    seconds = best = 0.0
    for layer in layers[::-1]:
        seconds += layer.forward_s + layer.backward_s
        best = max(best, seconds + (reduce_s(nbytes) if nbytes else 0.0))
        nbytes -= 4 * layer.values
    return np.array(best)
def equal_pieces(layers, reduce_s):
    """All gradients as one array from the front on, cut into equal messages; the best number of them."""
    places = [(i, layer.values) for i, layer in enumerate(layers) if layer.values]
    total = sum(values for _, values in places)
    def cut(many):
        bounds = np.linspace(0, total, many + 1).astype(int)
        messages = []
        for low, high in pairwise(bounds):
            pieces, start = [], 0
            for i, values in places:
                begin, end = max(low, start), min(high, start + values)
                if begin < end: pieces.append((i, int(begin - start), int(end - start)))
                start += values
            if pieces: messages.append(pieces)
        return messages
    return min((cut(many) for many in (1, 2, 4, 8, 16, 24, 32, 48)), key=lambda one: play(layers, one, reduce_s).step_s)
def growing_pieces(layers, reduce_s):
    """The front in small messages, what is behind it in ever larger ones; a generator makes each plan."""
    def plan(first, factor):
        room, message = float(first), []
        for i, layer in enumerate(layers):
            begin = 0
            while begin < layer.values:
                end = min(layer.values, begin + max(1, int(room) - sum(stop - start for _, start, stop in message)))
                message.append((i, begin, end))
                begin = end
                if sum(stop - start for _, start, stop in message) >= int(room):
                    yield message
                    message, room = [], room * factor
        if message: yield message
    total = sum(layer.values for layer in layers)
    plans = [list(plan(max(1, total // parts), factor)) for parts in (1, 2, 4, 8, 16, 32, 64) for factor in (1, 1.3, 2)]
    return min(plans, key=lambda one: play(layers, one, reduce_s).step_s)
RIGHT = {
    "16.fit_link": [by_a_matrix, by_the_quickest, as_an_array_of_two, by_a_line, by_the_lower_quartile],
    "16.step_time": [by_events, by_what_is_left, in_one_loop, by_recursion],
    "16.lower_bound": [bound_in_one_pass, bound_by_numpy, bound_by_definition, bound_from_the_end],
    "16.schedule": [filled_up, improved_in_steps, equal_pieces, growing_pieces],
}
