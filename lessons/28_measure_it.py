# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Measure it
#
# **Question:** which part of a machine does a training use, where does the rest go, and what does it cost?
#
# **Afterwards you can**
#
# - read a trace of all ranks, with torch's operations and the collectives between them,
# - compute the utilization of a training, and say for a product whether computing or memory is its limit,
# - find the rank that the others wait for, and what it costs,
# - write a run's bill, and defend the layout of a model of 7 billion parameters.
#
# **Needs:** two cores, no GPU. **Alone:** 40 minutes to read, 25 to do. **Led:** 65 minutes. **Before:** lessons 16, 23
# and 24.

# %% [markdown]
# ## Do you remember?
#
# Say each answer aloud before you open it.
#
# <details>
# <summary>Lesson 08: why is the first step not timed?</summary>
#
# It allocates memory, fills caches and starts threads, so it takes longer than all others.
#
# </details>
#
# <details>
# <summary>Lesson 27: 4 stages, 8 micro-batches. Which part of the time is a stage idle?</summary>
#
# 3 of 11 with one stage on each rank, 3 of 19 with two.
#
# </details>

# %% tags=["both"]
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import workbench
from workbench import cluster, data
from workbench.course.exercise import catch_up, check, exercise, hint, show, solution
from workbench.course.predictions import predict, reveal
from workbench.course.simulator import simulate
from workbench.course.tasks import task
from workbench.course.tasks.t23_layout import asked
from workbench.course.training.layouts import NAMES, Cluster, Layout, Transformer, memory, parts, refuse, seconds
from workbench.diagnostics.nccl_topology import describe, parse

# %% [markdown]
# ## 1. Utilization
#
# A token costs six FLOP for each number in a matrix: two forward, four backward. What attention computes comes on top.
# That is what the *model* needs, whatever the program computes besides. Your first exercise has the formula. Is it
# right? torch can count:

# %%
sys.path.insert(0, "steps/gpt")
import gpt

shape = gpt.Shape(layers=4, width=128, heads=4, tokens=128)
torch.manual_seed(0)
model, text = gpt.GPT(shape), torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)
texts = gpt.batch(text, 0, 8, shape.tokens)
with FlopCounterMode(display=False) as counter:
    gpt.loss_of(model, texts).backward()
mfu = task("28.mfu").reference
formula = mfu(shape.layers, shape.width, shape.tokens, shape.vocabulary, per_second=1, peak=1)
counted = counter.get_total_flops() / (8 * shape.tokens)
matrices = mfu(shape.layers, shape.width, 0, shape.vocabulary, 1, 1)
print(f"FLOP for a token: {formula:,.0f} by the formula, of these {matrices:,.0f} in matrices; counted {counted:,.0f}")

# %% [markdown]
# torch's counter knows no FLOP of a CPU's attention kernel, so it counts the matrices alone. The **peak**
# of a machine is in its data sheet. For this one we measure a large product, on one thread:


# %% tags=["nbval-ignore-output"]
def best(call, times=5):
    """The shortest of some runs, in seconds."""
    call()
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return min(taken)


torch.set_num_threads(1)
a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
peak = 2 * 1024**3 / best(lambda: a @ b)
big, other = torch.randn(1 << 24), torch.empty(1 << 24)
bandwidth = 2 * big.nbytes / best(lambda: other.copy_(big))
step_s = best(lambda: gpt.loss_of(model, texts).backward())
used = mfu(shape.layers, shape.width, shape.tokens, shape.vocabulary, texts.numel() / step_s, peak)
print(f"peak {peak / 1e9:.0f} GFLOP/s, copies {bandwidth / 1e9:.1f} GB/s, a step {1e3 * step_s:.0f} ms: MFU {used:.0%}")

# %%
predict(
    "28.mfu",
    "On large GPUs well written programs train large models. Which part of the peak do they use?",
    choices=["10 to 20 %", "35 to 50 %", "70 to 80 %", "over 90 %"],
)

# %%
reported = 400e12 / 989e12  # FLOP/s of each GPU, as the authors of Llama 3 report, and of an H100's data sheet
reveal(
    "28.mfu",
    "35 to 50 %" if 0.35 < reported < 0.5 else "10 to 20 %",
    "Llama 3 of 405 G parameters was trained with 380 to 430 of 989 TFLOP/s on each GPU (Llama team, 2024). The rest"
    " is bubbles, waiting for messages, and operations that move more than they compute.",
)

# %% [markdown]
# ## 2. The roofline
#
# An operation that moves many bytes for each FLOP cannot reach the peak, on no machine. Its **intensity** is FLOP per
# byte. Below peak / bandwidth the memory is the limit. Your second exercise has a product's intensity. A GPU of 989
# TFLOP/s and 3.35 TB/s (an H100's data sheet) needs 295 FLOP per byte:

# %%
product_s = task("28.product_s").reference
print("rows of x   FLOP/byte   microseconds   of the peak")
for rows in (1, 16, 128, 1024, 8192):
    intensity, took = product_s(rows, 4096, 4096, 989e12, 3.35e12)
    print(f"{rows:9,} {intensity:11.0f} {1e6 * took:14.1f} {2 * rows * 4096**2 / took / 989e12:13.1%}")

# %% [markdown]
# One row is a token that is written: the whole matrix is read for it. So writing is limited by memory,
# and training, with thousands of tokens in a step, by computing. A norm, an activation or a sum has an intensity of a
# few FLOP per byte: memory is the limit, always.
#
# ## 3. A trace of all ranks
#
# `torch.profiler` writes what each thread did. With the workbench as backend the collectives stand in it, too, each
# with its shapes. Two engines, three steps of DDP; rank 1 has a slow source of data:

# %%
engines = cluster.up(n=2)

# %%
# %%px
import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench import data

sys.path.insert(0, "steps/gpt")
import gpt

dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
shape = gpt.Shape(layers=2, width=64, heads=4, tokens=64)
text = torch.frombuffer(bytearray(data.shakespeare()), dtype=torch.uint8)
torch.manual_seed(0)
model = DistributedDataParallel(gpt.GPT(shape))
optimizer = gpt.optimizer_of(model)


def step(number):
    """One step; the seconds until its batch is there. In DDP's forward and backward a rank may wait for another one."""
    begun = time.perf_counter()
    texts = gpt.batch(text, number, 8, shape.tokens).chunk(n)[rank]
    if rank == 1:
        time.sleep(0.05)
    taken = time.perf_counter() - begun
    optimizer.zero_grad()
    gpt.loss_of(model, texts).backward()
    optimizer.step()
    return taken


@contextlib.contextmanager
def quiet():
    """Without the lines that the profiler's library writes to the terminal."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


_ = step(0)
with quiet(), torch.profiler.profile(record_shapes=True) as profiler:
    for number in range(1, 4):
        _ = step(number)
profiler.export_chrome_trace(f"trace-{rank}.json")
found = sorted({each.name for each in profiler.events() if each.name.startswith("workbench:")})
print(f"rank {rank}: {found}")

# %% [markdown]
# Each rank has a file. One file with a row for each rank is a few lines: give the ranks' processes other
# numbers, and a name. Open `trace.json` at [ui.perfetto.dev](https://ui.perfetto.dev), or in Chrome at
# `chrome://tracing`.

# %%
together = []
for rank in range(engines.n):
    path = Path(f"trace-{rank}.json")
    for event in json.loads(path.read_text())["traceEvents"]:
        if isinstance(event.get("pid"), int):
            event["pid"] = rank
        together.append(event)
    together.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
    path.unlink()
Path("trace.json").write_text(json.dumps({"traceEvents": together}))
named = {event["args"]["name"] for event in together if event["name"] == "process_name"}
collectives = sum(event["name"] == "workbench:all_reduce" for event in together)
print(f"{sorted(each for each in named if each.startswith('rank'))} in one file, with collectives: {collectives > 0}")

# %% [markdown]
# ## 4. Who is waited for?
#
# A step ends when the slowest rank is done. The trace of a *fast* rank shows a long allreduce, and so one looks for a
# slow network. Compare what each rank does before it waits:

# %%
predict(
    "28.straggler",
    "Rank 1 takes twice as long as rank 0 in each step, before the allreduce. Which part of both ranks' time is "
    "waiting?",
    choices=["a tenth", "a quarter", "a half", "three quarters"],
)

# %%
lost = task("28.lost").reference
share, slowest = simulate(2, lambda comm: lost(comm, np.array([1.0 + comm.rank] * 10))).results[0]
reveal(
    "28.straggler",
    "a quarter" if abs(share - 0.25) < 0.01 else "a half",
    "Rank 0 waits for half of its time, and rank 1 never: a quarter of both.",
)

# %%
# %%px
from workbench.course.tasks import task

mine = [step(number) for number in range(4, 14)]
every = [None] * n
dist.all_gather_object(every, mine)

# %%
every = np.array(engines.client[0]["every"])
share, slowest = simulate(2, lambda comm: lost(comm, every[comm.rank])).results[0]
print(f"waited for most: rank {slowest}; more than a tenth of the time is lost: {share > 0.1}")

# %% [markdown]
# The recorder says the same, without a profiler: whose collectives began last.

# %% tags=["nbval-ignore-output"]
workbench.timeline(last=10)

# %%
# %%px
dist.destroy_process_group()

# %%
engines.down()
Path("trace.json").unlink()

# %% [markdown]
# ## 5. What NCCL says
#
# | variable | what it does |
# |---|---|
# | `NCCL_DEBUG=INFO` | each rank writes version, network, rings and trees; `NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET` chooses |
# | `NCCL_TOPO_DUMP_FILE` | the machine as NCCL sees it, as XML: GPUs, NVLink, network cards |
# | `NCCL_SOCKET_IFNAME`, `NCCL_IB_HCA` | which interface, which cards; the first thing to set if ranks do not connect |
# | `NCCL_P2P_DISABLE=1`, `NCCL_IB_DISABLE=1` | leave a way out, to find out whether it is the cause |
# | `NCCL_ALGO`, `NCCL_PROTO` | ring or tree, and how data is passed on: to measure, not to keep |
#
# `workbench doctor` has NCCL write its XML, and reads it. Here is one of two GPUs with four NVLinks between them, and a
# network card that reaches no GPU's memory by itself. It was written for this lesson, in NCCL's form:

# %%
XML = """
<system version="1"><cpu numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel">
<pci busid="0000:1a:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="90" rank="0" gdr="0"><nvlink target="0000:3d:00.0" count="4" tclass="0x030200"/></gpu></pci>
<pci busid="0000:3d:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="1" sm="90" rank="1" gdr="0"><nvlink target="0000:1a:00.0" count="4" tclass="0x030200"/></gpu></pci>
<nic><net name="mlx5_0" dev="0" speed="100000" port="1" latency="0.000000" maxconn="131072" gdr="0"/></nic>
</cpu></system>
"""
for finding in describe(parse(XML)):
    print(finding.line())

# %% [markdown]
# ## 6. The bill
#
# Your last exercise has a run's energy and price. What does it cost if GPUs wait? Llama 2 of 7 G parameters took
# 184,320 hours of A100s with at most 400 W (Touvron and others, 2023). With 30 % for hosts and cooling, 90 W when idle,
# 0.20 euro for a kWh:

# %%
bill = task("28.bill").reference
for busy in (1.0, 0.9, 0.7):
    hours = 184_320 / 1000 / busy  # on a thousand GPUs, for the same work
    kwh, euro = bill(1000, hours, 400, busy, 90, 1.3, 0.20)
    print(f"busy for {busy:4.0%}: {hours:4.0f} hours, {kwh:9,.0f} kWh, {euro:7,.0f} euro")

# %% [markdown]
# Electricity is the small part: at 2 euro an hour for a GPU, the same run costs 368,640 euro, and waiting
# makes all of it longer. Many processors count their own energy (RAPL). Where this one's counter can be read, here is
# what a second takes:


# %% tags=["nbval-ignore-output"]
def joules():
    counter = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
    try:
        return int(counter.read_text()) / 1e6
    except OSError:
        return None


before = joules()
time.sleep(1)
print("no counter that this user may read" if before is None else f"{joules() - before:.1f} W, all processes together")

# %% [markdown]
# ## 7. Defend a layout
#
# A model of 7 G parameters on 64 GPUs, 8 in each host. Lesson 23's function finds the fastest layout that fits. Here
# are the parts of its step, beside two that somebody else may propose:

# %%
seven, hosts = Transformer(32, 4096, samples=512), Cluster(8)
best_layout = task("23.choose").reference(*asked(seven, hosts))
print(f"{seven.parameters / 1e9:.1f} G parameters, {hosts.gpus} GPUs")
for layout in (best_layout, (8, 8, 1, 8), (1, 8, 8, 64)):
    took = parts(seven, hosts, layout)
    told = ", ".join(f"{name} {each:.2f}" for name, each in zip(NAMES, took, strict=True) if each)
    print(f"{layout!s:14} {seconds(seven, hosts, layout):5.2f} s: {told}")

# %%
predict(
    "28.layout",
    "The network between the hosts becomes four times as slow. What happens to the best layout?",
    choices=["nothing", "shorter pipelines, larger tensor groups", "longer pipelines", "fewer data ranks"],
)

# %%
slow = Cluster(8, between_s=4 * hosts.between_s)
other = task("23.choose").reference(*asked(seven, slow))
for layout in (best_layout, other):
    took = dict(zip(NAMES, parts(seven, slow, layout), strict=True))
    print(
        f"{layout!s:16} {seconds(seven, slow, layout):.2f} s on the slow network, messages {took[NAMES[3]]:.2f} s of it"
    )
changes = {
    "nothing": other == best_layout,
    "shorter pipelines, larger tensor groups": other[2] < best_layout[2] and other[1] > best_layout[1],
    "longer pipelines": other[2] > best_layout[2],
    "fewer data ranks": other[0] < best_layout[0],
}
reveal(
    "28.layout",
    next(change for change, holds in changes.items() if holds),
    "The pipelines' messages are the largest part that goes over this network. Half as many stages, with tensor groups "
    "of two inside a host, send fewer of them.",
)

# %% [markdown]
# ### All axes
#
# Two axes are new since lesson 23. **Sharded** ranks divide weights, gradients and the optimizer's state, as
# `fully_shard` does (lesson 25). **Context** ranks divide each text (lesson 26). And messages of data and sharded ranks
# may be hidden behind computing: with `overlap=1` only what is left over counts. `memory` has the bytes of states and
# of activations, `refuse` says of a layout that is not possible what would be.

# %%
hosts = Cluster(8, overlap=1.0)
layouts = {
    "sharded over all": Layout(sharded=64),
    "sharded in a host, data between": Layout(data=8, sharded=8),
    "sharded × tensor": Layout(sharded=8, tensor=8),
    "data × 4 stages": Layout(data=16, pipeline=4, microbatches=8),
    "interleaved, 2 stages on a rank": Layout(data=16, pipeline=4, microbatches=8, chunks=2),
}


def compare(model, layouts):
    for name, layout in layouts.items():
        refuse(model, hosts, layout)
        gib = [each / 2**30 for each in memory(model, layout)]
        fits = "" if sum(gib) < 80 else ", too much"
        print(f"{name:32}{seconds(model, hosts, layout):7.2f} s, {gib[0]:4.1f} + {gib[1]:5.1f} GiB{fits}")


compare(seven, layouts)

# %%
predict(
    "28.context",
    "Sharded over all 64 GPUs, activations take 68 GiB. Now a text has 131,072 tokens instead of 2,048, and a step 64 "
    "texts: one for each GPU. How much do activations take?",
    choices=["8.5 GiB: one text instead of eight", "68 GiB", "544 GiB"],
)

# %%
long = Transformer(32, 4096, tokens=131_072, samples=64, heads=32)
of_one = memory(long, Layout(sharded=64))[1] / 2**30
compare(
    long,
    {
        "sharded over all": Layout(sharded=64),
        "the same, layers computed again": Layout(sharded=64, recompute="layers"),
        "sharded × tensor": Layout(sharded=8, tensor=8, microbatches=8),
        "sharded × context": Layout(sharded=8, context=8, microbatches=8),
    },
)
reveal(
    "28.context",
    "544 GiB" if of_one > 500 else "68 GiB",
    "A GPU has eight times as many tokens as before. Sharding divides states, not activations. The context's ranks "
    "divide a text, and pass on its keys and values; tensor ranks divide each layer, and pass on everything between.",
)

# %%
try:
    refuse(seven, hosts, Layout(pipeline=64, microbatches=64))
except ValueError as error:
    print(error)

# %% [markdown]
# ### How far is it right?
#
# A formula that nobody has held against a clock is an opinion. `benchmarks/layouts.py` holds this one against steps
# that were measured, most of them by others. One row of each table gives the rate of computing (of two tables a second
# one another constant), all other rows are predicted:
#
# | steps of | rows | median error | worst |
# |---|---|---|---|
# | [Megatron-LM](https://arxiv.org/abs/2104.04473), 1.7 to 1,008 G parameters, 32 to 3,072 A100 | 9 | 5 % | 22 % |
# | [Megatron-LM](https://arxiv.org/abs/2205.05198), two ways to compute again | 7 | 8 % | 10 % |
# | [torchtitan](https://github.com/pytorch/torchtitan), sharded and tensor, 8 to 256 H100 | 4 | 10 % | 23 % |
# | torchtitan, 2, 4 and 8 context ranks, float8 | 3 | 23 % | 27 % |
# | [Ultra-Scale Playbook](https://huggingface.co/spaces/nanotron/ultrascale-playbook), 8 H100 | 65 | 5 % | 60 % |
# | `examples/gpt.py` on two ranks, one core each, all axes, torch's own functions | 30 | 5 % | 22 % |
#
# Small models compute at a lower rate than large ones, and one rate for all rows does not say so: that is most of the
# error. Memory comes out a fifth to a third too small, for an allocator keeps more than is needed. On many hosts, with
# a busy network, steps take up to three times as long as here: congestion is not in it.

# %% [markdown]
# Defend it: which part of the step would you shorten first, by which lesson, and what does an hour of all 64 GPUs cost?

# %% [markdown] tags=["exercise"]
# First run the cell above with the imports. `show` draws your function, `check` judges it, `hint` gives a hint,
# `solution` shows the solution. Everything except the last section works without engines.
#
# ## Utilization

# %% tags=["exercise"]
# exercise: 28.mfu

# %% tags=["exercise"]
check("28.mfu")

# %% [markdown] tags=["exercise"]
# ## Computing, or moving?

# %% tags=["exercise"]
# exercise: 28.product_s

# %% tags=["exercise"]
check("28.product_s")

# %% [markdown] tags=["instructor"]
# **Instructor.** Led: 65 minutes, 25 of them for the exercises. Let them guess
# the MFU of the small model before it is measured, and ask what it would be on two threads. In section 4 show the trace
# of rank 0 first, and let them blame the network. `28.lost`: most divide by the computing time. Section 7 is for pairs:
# one proposes, the other one asks for parts.

# %% [markdown] tags=["exercise"]
# ## Who is waited for?

# %% tags=["exercise"]
# exercise: 28.lost

# %% tags=["exercise"]
check("28.lost")

# %% [markdown] tags=["exercise"]
# ## The bill

# %% tags=["exercise"]
# exercise: 28.bill

# %% tags=["exercise"]
check("28.bill")

# %% [markdown] tags=["exercise"]
# ## On real ranks

# %% tags=["exercise"]
engines = cluster.up(n=2)
check("28.lost")

# %% tags=["exercise"]
engines.down()

# %% [markdown]
# ## Keypoints
#
# - MFU counts what the model needs: six FLOP for each number of a matrix and token, and attention's products.
# - Intensity below peak / bandwidth: the memory is the limit. Writing a text is there, training is not.
# - A long allreduce on a fast rank means a slow rank. Compare what each does before it waits.
# - Waiting costs as much as computing, all but the watts.
#
# ## Today
#
# What libraries do about this in November 2026:
#
# - **`torch.profiler`** writes such traces, also of GPUs and NCCL
#   ([source](https://docs.pytorch.org/docs/stable/profiler.html)).
# - **Holistic Trace Analysis** reads the traces of many ranks, and finds stragglers and exposed communication
#   ([source](https://github.com/facebookresearch/HolisticTraceAnalysis)).
# - **Llama 3's authors** report 38 to 43 % MFU on 16,384 GPUs, and 419 interruptions in 54 days
#   ([source](https://arxiv.org/abs/2407.21783)).
# - **CodeCarbon** and Zeus measure the energy of a run, with NVIDIA's and Intel's counters
#   ([source](https://ml.energy/zeus/)).
# - **Perfetto** shows traces in a browser, without sending them anywhere ([source](https://perfetto.dev/)).
