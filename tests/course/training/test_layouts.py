"""A layout's seconds beside messages that are counted GPU by GPU, and a pipeline that is played."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

from workbench.course.pipelines.played import gpipe, play
from workbench.course.tasks.t23_layout import bytes_per_gpu
from workbench.course.training import layouts
from workbench.course.training.layouts import NAMES, Cluster, Layout, Transformer, memory, parts

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
            continue
        ways = 2 if tensor * pipeline > 2 * PLACE.gpus_per_host else 1  # a host between two others sends to both
        assert seconds == pytest.approx(2 / ways * bytes_s * (microbatches + pipeline - 2) / microbatches)


def test_one_micro_batch_is_what_is_played() -> None:
    """It goes through all stages, forward and back: computing, bubble and messages are as long as when it is played."""
    for pipeline in [1, 2, 4, 8]:
        model, place = replace(MODEL, samples=8), Cluster(1, latency_s=1e-3, inside_s=0.0)
        computing, bubble, _, messages, *_ = parts(model, place, (8 // pipeline, 1, pipeline, 1))
        played = play(gpipe, pipeline, 1, message_s=3 * place.latency_s / computing)
        assert computing + bubble + messages == pytest.approx(played.step_s * computing / 3)


def test_computing_counts_attentions_scores_twice_in_forward() -> None:
    """4 s² h operations forward, 8 backward, and 4 again, for they are not kept; beside 6 for a parameter and token."""
    tokens = MODEL.tokens * MODEL.samples
    scores = 16 * MODEL.layers * MODEL.tokens * MODEL.width * tokens
    computing = parts(MODEL, PLACE, (64, 1, 1, 1))[0]
    assert computing * PLACE.gpus * PLACE.flops == pytest.approx(6 * MODEL.parameters * tokens + scores)


def played_by_torch(ranks: int, microbatches: int, chunks: int) -> float:
    """How long torch's interleaved order takes, with 1 for a forward and 2 for a backward of a whole rank's layers."""
    order: Any = ScheduleInterleaved1F1B.__new__(ScheduleInterleaved1F1B)
    order.pp_group_size, order.n_local_stages, order._n_microbatches = ranks, chunks, microbatches
    order.number_of_rounds, order.microbatches_per_round = microbatches // ranks, ranks
    plans = {rank: [op for op in order._calculate_single_rank_operations(rank) if op] for rank in range(ranks)}
    done: dict[tuple[int, str, int], float] = {}
    clock, last = dict.fromkeys(plans, 0.0), ranks * chunks - 1
    while any(plans.values()):
        for rank, plan in plans.items():
            if plan:
                stage, micro = plan[0].stage_index, plan[0].microbatch_index
                kind = "F" if plan[0].computation_type.name == "FORWARD" else "B"
                before = (stage - 1, "F", micro) if kind == "F" else (stage + 1, "B", micro)
                if before in done or stage == (0 if kind == "F" else last):
                    clock[rank] = max(clock[rank], done.get(before, 0.0)) + (1 if kind == "F" else 2) / chunks
                    done[stage, kind, micro] = clock[rank]
                    plan.pop(0)
    return max(clock.values())


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 2), (4, 8, 3), (4, 16, 4)])
def test_interleaved_stages_are_what_torch_plays(ranks: int, microbatches: int, chunks: int) -> None:
    """The bubble of v stages on each rank is v times smaller."""
    layout = Layout(pipeline=ranks, microbatches=microbatches, chunks=chunks)
    computing, bubble, *_ = parts(MODEL, Cluster(1, ranks), layout)
    assert (computing + bubble) / computing == pytest.approx(
        played_by_torch(ranks, microbatches, chunks) / 3 / microbatches
    )


@pytest.mark.parametrize("n", [2, 4])
def test_shards_send_what_lesson_25_sends(n: int) -> None:
    """Each weight is gathered twice, and its gradient scattered: the least that the exercise may send."""
    model, place = Transformer(2, 64, samples=8), Cluster(1, n, inside_s=1.0, latency_s=0.0)
    sent = dict(zip(NAMES, parts(model, place, Layout(sharded=n)), strict=True))["the shards' weights and gradients"]
    assert sent == pytest.approx(3 * (n - 1) / n * 2 * model.parameters)
    half = parts(model, place, Layout(sharded=n, microbatches=4))[NAMES.index("the shards' weights and gradients")]
    assert half == pytest.approx(4 * sent)


def test_messages_of_data_and_shards_hide_behind_computing() -> None:
    """All but a piece of them, if computing takes longer; and none without an overlap."""
    model, data = Transformer(24, 2048), NAMES.index("the data groups' sums")
    slow = Cluster(4, between_s=1 / 20e9)
    for layout, number in ((Layout(data=32), data), (Layout(sharded=32), data + 1)):
        shown, hidden = (parts(model, replace(slow, overlap=overlap), layout)[number] for overlap in (0.0, 1.0))
        assert 0 < hidden < 0.1 * shown, layout
    shown, hidden = (
        parts(replace(model, samples=32), replace(slow, overlap=overlap), Layout(data=32))[data] for overlap in (0, 1)
    )
    assert 0.3 * shown < hidden < shown


def test_memory_is_that_of_lesson_23() -> None:
    """Without shards, context and ends."""
    for layout in [(64, 1, 1, 4), (8, 8, 1, 16), (4, 2, 8, 128), (1, 8, 8, 2)]:
        data, _, _, microbatches = layout
        activations = MODEL.activations(MODEL.samples / (data * microbatches))
        assert sum(memory(MODEL, layout)) == pytest.approx(bytes_per_gpu(MODEL.parameters, activations, *layout))


def test_every_axis_divides_what_it_should() -> None:
    """States: all but data's and context's ranks. Activations: all."""
    model = replace(MODEL, samples=64)
    states, activations = memory(model, Layout(recompute="nothing"))
    for cut, of_states in (
        (Layout(data=4, zero=0), 1),
        (Layout(tensor=4), 4),
        (Layout(pipeline=4, microbatches=4), 4),
        (Layout(context=4), 1),
    ):
        found = memory(model, cut)
        assert states / found[0] == pytest.approx(of_states)
        assert activations / found[1] == pytest.approx(4)
    for sharded in (Layout(sharded=4, context=2), Layout(sharded=0, context=8)):
        gathered = 2 * model.number_bytes * model.of_layer
        assert states / (memory(model, sharded)[0] - gathered) == pytest.approx(8)
    assert memory(model, Layout(recompute="layers"))[1] < activations / 10


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (Layout(tensor=6), "tensor = 6 does not divide heads = 40. The nearest that does: 5 or 8"),
        (Layout(tensor=64), "tensor = 64 does not divide heads = 40. The nearest that does: 40"),
        (Layout(pipeline=64), "pipeline × chunks = 64 does not divide layers = 40. The nearest that does: 40"),
        (Layout(pipeline=8, chunks=2), "pipeline × chunks = 16 does not divide layers = 40. The nearest that does: 10"),
        (Layout(context=3), "2 × context = 6 does not divide tokens = 2048. The nearest that does: 4 or 8"),
        (Layout(sharded=48), "data × sharded = 48 does not divide samples = 512. The nearest that does: 32 or 64"),
        (Layout(data=64, microbatches=3), "microbatches = 3 does not divide samples / data = 8"),
        (Layout(data=8, tensor=4), "8 × 1 × 4 × 1 × 1 = 32 ranks, and there are 64"),
    ],
)
def test_a_layout_that_is_not_possible(layout: Layout, told: str) -> None:
    """The numbers, and the nearest that is."""
    place = PLACE if "ranks" in told else Cluster(1, layout.ranks)
    with pytest.raises(ValueError, match=re.escape(told)):
        layouts.refuse(replace(MODEL, heads=40), place, layout)
    layouts.refuse(replace(MODEL, heads=40), PLACE, Layout(data=2, tensor=4, pipeline=8, microbatches=8))


def test_published_steps() -> None:
    """Of each table all rows but those that give its constants, as ``benchmarks/layouts.py`` prints them."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
    try:
        from layouts import compared, published
    finally:
        sys.path.pop(0)
    found = {}
    for table, rows in published():
        _, held = compared(rows, table)
        found[table] = median(abs(predicted / wanted - 1) for _, wanted, predicted, _, _ in held)
        gib = [predicted / wanted for _, _, _, wanted, predicted in held if wanted]
        assert all(0.5 < each < 1.05 for each in gib), table  # an allocator keeps more than is needed
    assert found == {
        "Megatron-LM 2021": pytest.approx(0.05, abs=0.01),
        "Megatron-LM 2022": pytest.approx(0.08, abs=0.01),
        "torchtitan bf16": pytest.approx(0.10, abs=0.01),
        "torchtitan float8, context": pytest.approx(0.23, abs=0.01),
        "Ultra-Scale Playbook, one host": pytest.approx(0.05, abs=0.01),
    }


def test_activations_are_those_that_megatron_gives() -> None:
    """GiB of a GPU, with sequence parallelism and scores computed again: figure 1 of arXiv:2205.05198."""
    for layers, width, batch, pipeline, chunks, gib in [
        (48, 6144, 4, 1, 1, 9.5625),
        (96, 12288, 1, 8, 3, 12.3515625),
        (105, 20480, 1, 35, 3, 23.076171875),
        (128, 25600, 1, 64, 1, 26.5625),
    ]:
        model = Transformer(layers, width, samples=64 * batch)
        _, activations = memory(model, Layout(tensor=8, pipeline=pipeline, microbatches=64, chunks=chunks))
        assert activations / 2**30 == pytest.approx(gib, rel=1e-3)
