"""Wrong solutions of lesson 16, each with what the check must say."""

from __future__ import annotations

import random
from statistics import mean, median

from wrong_answers import Answers

wrong = Answers()

Messages = list[list[tuple[int, int, int]]]


@wrong("16.fit_link", "the constants of the whole allreduce. It takes 2 (ranks - 1) steps")
def link_of_the_whole_allreduce(ranks, short, long):
    quick, slow = median(short[1]), median(long[1])
    return quick, max(0.0, (slow - quick) / (long[0] - short[0]))
@wrong("16.fit_link", "a step sends bytes / ranks, not the whole array")
def link_sends_the_whole_array_each_step(ranks, short, long):
    steps, quick, slow = 2 * (ranks - 1), median(short[1]), median(long[1])
    per_byte_s = max(0.0, (slow - quick) / (long[0] - short[0])) / steps
    return max(0.0, quick / steps - per_byte_s * short[0]), per_byte_s
@wrong("16.fit_link", "Every slow repetition changes a mean")
def link_by_the_mean(ranks, short, long):
    steps, quick, slow = 2 * (ranks - 1), mean(short[1]), mean(long[1])
    per_byte_s = max(0.0, (slow - quick) / (long[0] - short[0])) * ranks / steps
    return max(0.0, quick / steps - per_byte_s * short[0] / ranks), per_byte_s
@wrong("16.fit_link", "3 of 15 repetitions disturbed")
def link_by_the_first_repetition(ranks, short, long):
    steps, (few, (quick, *_)), (many, (slow, *_)) = 2 * (ranks - 1), short, long
    per_byte_s = max(0.0, (slow - quick) / (many - few)) * ranks / steps
    return max(0.0, quick / steps - per_byte_s * few / ranks), per_byte_s
@wrong("16.fit_link", "Latency and time per byte cannot be negative: return 0 instead")
def link_may_be_negative(ranks, short, long):
    steps, quick, slow = 2 * (ranks - 1), median(short[1]), median(long[1])
    per_byte_s = (slow - quick) / (long[0] - short[0]) * ranks / steps
    return quick / steps - per_byte_s * short[0] / ranks, per_byte_s
@wrong("16.fit_link", "and no pair (latency_s, per_byte_s)")
def link_in_one_number(ranks, short, long): return median(long[1]) / long[0]
@wrong("16.step_time", "one layer, (forward_s, backward_s, values) = (1, 2, 25)")
@wrong("16.step_time", "that is computing alone")
@wrong("16.lower_bound", "that is computing alone")
def step_computes_only(layers, reduce_s): return sum(layer.forward_s + layer.backward_s for layer in layers)
@wrong("16.step_time", "that is without overlap: a layer's message begins when its gradients are ready")
@wrong("16.lower_bound", "that is a step without overlap, and no bound: bytes can be sent while other layers")
def step_without_overlap(layers, reduce_s):
    sent = sum(reduce_s(4 * layer.values) for layer in layers if layer.values)
    return step_computes_only(layers, reduce_s) + sent
@wrong("16.schedule", "messages pay")
def front_first(layers, reduce_s): return [[(i, 0, layer.values)] for i, layer in enumerate(layers) if layer.values]
@wrong("16.schedule", "which are sent late, with")
def all_in_one(layers, reduce_s): return [[message[0] for message in front_first(layers, reduce_s)]]
def _cut(layers, largest):
    return [
        [(i, begin, min(begin + largest, layer.values))]
        for i, layer in enumerate(layers)
        for begin in range(0, layer.values, largest)
    ]
@wrong("16.schedule", "while the network carries 67.1 MB of fc6 in one message")
def one_size_for_all(layers, reduce_s):
    messages: Messages = []
    for [piece] in _cut(layers, 1 << 24):
        carried = sum(end - begin for _, begin, end in messages[-1]) if messages else 1 << 21
        if carried + piece[2] - piece[1] <= 1 << 21: messages[-1].append(piece)
        else: messages.append([piece])
    return messages
@wrong("16.schedule", "gradients 24 to 25 of layer 0 (a) are in no message")
def forgets_the_last_piece(layers, reduce_s):
    return [[(i, 0, layer.values - 1)] for i, layer in enumerate(layers) if layer.values > 1]
@wrong("16.schedule", "gradients 12 to 13 of layer 0 (a) are in two messages, or twice in one")
def ends_overlap(layers, reduce_s):
    halves = [[(i, begin, end)] for [(i, _, n)] in front_first(layers, reduce_s) for begin, end in
              ((0, n // 2 + 1), (n // 2, n)) if begin < end]  # fmt: skip
    return [[(i, begin, min(end, layers[i].values))] for [(i, begin, end)] in halves]
@wrong("16.schedule", "layer 0 has gradients 0 to 25, and a piece at least one of them")
def in_bytes(layers, reduce_s): return [[(i, 0, 4 * layer.values)] for i, layer in enumerate(layers) if layer.values]
@wrong("16.schedule", "and a piece at least one of them")
def empty_pieces(layers, reduce_s): return [[(i, 0, layer.values)] for i, layer in enumerate(layers)]
@wrong("16.schedule", "three whole numbers (layer, begin, end) are needed")
def pieces_without_messages(layers, reduce_s):
    return [(i, 0, layer.values) for i, layer in enumerate(layers) if layer.values]
@wrong("16.schedule", "Ranks that do not agree wait for different messages, and never end")
def draws_lots(layers, reduce_s):
    messages = front_first(layers, reduce_s)
    random.shuffle(messages)
    return messages
@wrong("16.schedule", "changes the list of layers, which belongs to the caller")
def changes_the_layers(layers, reduce_s):
    messages = front_first(layers, reduce_s)
    layers.pop()
    return messages
@wrong("16.fit_link", "the least that it can be is 0: max(0, …), not abs(…)")
def turns_the_sign(ranks, short, long):
    steps = 2 * (ranks - 1)
    (few, quick), (many, slow) = (short[0], median(short[1])), (long[0], median(long[1]))
    per_byte_s = abs((slow - quick) / (many - few)) * ranks / steps
    return abs(quick / steps - per_byte_s * few / ranks), per_byte_s
@wrong("16.lower_bound", "computing is counted from layer i + 1 on: layer i itself belongs to it")
def from_the_next_layer_on(layers, reduce_s):
    return max(
        reduce_s(4 * sum(each.values for each in layers[: i + 1]))
        + sum(each.forward_s + each.backward_s for each in layers[i + 1 :])
        for i in range(len(layers))
    )
