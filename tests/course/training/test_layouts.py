"""A layout's seconds beside messages that are counted GPU by GPU, and a pipeline that is played."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from workbench.course.pipelines.played import gpipe, play
from workbench.course.training.layouts import NAMES, Cluster, Transformer, parts

MODEL = Transformer(layers=40, width=5120)
PLACE = Cluster(8, between_s=1 / 1.25e9, latency_s=0.0)
PIPELINE = NAMES.index("the pipelines' messages")


def sent_by_a_host(layout: tuple[int, int, int, int], place: Cluster) -> float:
    """Bytes of a step's messages between stages that leave the host which sends most: each GPU sends its part."""
    data, tensor, pipeline, microbatches = layout
    part = 2 * MODEL.width * MODEL.tokens * MODEL.samples / (data * microbatches) / tensor
    leaving: Counter[int] = Counter()
    for gpu in range(place.gpus):
        to = gpu + tensor
        hosts = gpu // place.gpus_per_host, to // place.gpus_per_host
        if gpu // tensor % pipeline < pipeline - 1 and hosts[0] != hosts[1]:
            leaving.update(dict.fromkeys(hosts, microbatches * part))  # x forward, its gradient back
    return max(leaving.values(), default=0.0)


def test_messages_between_stages_take_the_time_of_their_bytes() -> None:
    """Of those that leave a host, forward and back, and a little more while the pipeline fills; inside hosts few."""
    for layout in [
        (1, 8, 8, 64),
        (2, 4, 8, 128),
        (4, 8, 2, 32),
        (8, 1, 8, 64),
        (8, 2, 4, 64),
        (8, 8, 1, 16),
        (1, 1, 64, 512),
    ]:
        _, tensor, pipeline, microbatches = layout
        seconds = parts(MODEL, PLACE, layout)[PIPELINE]
        bytes_s = sent_by_a_host(layout, PLACE) * PLACE.between_s
        if not bytes_s:
            assert seconds < 0.05 * sum(parts(MODEL, PLACE, layout))
            return
        ways = 2 if tensor * pipeline > 2 * PLACE.gpus_per_host else 1  # a host between two others sends to both
        assert seconds == pytest.approx(2 / ways * bytes_s * (microbatches + pipeline - 2) / microbatches)


def test_one_micro_batch_is_what_is_played() -> None:
    """It goes through all stages, forward and back: computing, bubble and messages are as long as when it is played."""
    for pipeline in [1, 2, 4, 8]:
        model, place = replace(MODEL, samples=8), Cluster(1, latency_s=1e-3, inside_s=0.0)
        computing, bubble, _, messages, _ = parts(model, place, (8 // pipeline, 1, pipeline, 1))
        played = play(gpipe, pipeline, 1, message_s=3 * place.latency_s / computing)
        assert computing + bubble + messages == pytest.approx(played.step_s * computing / 3)


def test_computing_counts_attentions_scores_twice_in_forward() -> None:
    """4 s² h operations forward, 8 backward, and 4 again, for they are not kept; beside 6 for a parameter and token."""
    tokens = MODEL.tokens * MODEL.samples
    scores = 16 * MODEL.layers * MODEL.tokens * MODEL.width * tokens
    computing = parts(MODEL, PLACE, (64, 1, 1, 1))[0]
    assert computing * PLACE.gpus * PLACE.flops == pytest.approx(6 * MODEL.parameters * tokens + scores)
