"""How many images per second can be trained on? Made-up images, so that no disk stands in the way.

Start it::

    mpiexec -n 2 python examples/pytorch_synthetic_benchmark.py --model resnet18 --batch-size 4 --num-iters 3
    torchrun --nproc-per-node 2 examples/pytorch_synthetic_benchmark.py    # on GPUs: the defaults are for them

Compare ``Img/sec per ...`` of one rank and of several: what is lost is communication and waiting, and, where ranks
share a CPU, memory bandwidth and clock rate. The time between two barriers counts, so the slowest rank decides.
``--image-size 64 --num-warmup-batches 1 --num-batches-per-iter 1`` make a run of seconds.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from resnet import NETWORKS, resnet

import workbench.torch as hvd

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", choices=list(NETWORKS), default="resnet50")
parser.add_argument("--batch-size", type=int, default=32, help="per rank")
parser.add_argument("--image-size", type=int, default=224, metavar="PIXELS")
parser.add_argument("--num-warmup-batches", type=int, default=10, help="not timed")
parser.add_argument("--num-batches-per-iter", type=int, default=10, help="timed together")
parser.add_argument("--num-iters", type=int, default=10, help="how many times are measured")
parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel with 16 bits")
parser.add_argument("--use-adasum", action="store_true", help="combine the ranks' steps with Adasum")
parser.add_argument("--no-cuda", action="store_true", help="do not use GPUs")
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)  # on a CPU one rank is one core
torch.manual_seed(hvd.rank())
device, kind = torch.device("cpu"), "CPU"
if torch.cuda.is_available() and not args.no_cuda:
    device, kind = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()), "GPU"
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True

model = resnet(args.model).to(device)
scale = 1 if args.use_adasum else hvd.size()  # Adasum finds the size of the step itself
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * scale)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    op=hvd.Adasum if args.use_adasum else hvd.Average,
)

images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
labels = torch.randint(1000, (args.batch_size,), device=device)


def say(*words):
    """Print on rank 0."""
    if hvd.rank() == 0:
        print(*words, flush=True)


def seconds_of(batches):
    """Train on the same batch so many times, between two barriers."""
    hvd.barrier()
    start = time.perf_counter()
    for _ in range(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()  # the GPU works behind the program's back
    hvd.barrier()
    return time.perf_counter() - start


say(f"Model: {args.model}, {sum(p.numel() for p in model.parameters()):,} parameters")
say(f"Batch size: {args.batch_size}")
say(f"Number of {kind}s: {hvd.size()}")
seconds_of(args.num_warmup_batches)

rates = []
for i in range(args.num_iters):
    rates.append(args.batch_size * args.num_batches_per_iter / seconds_of(args.num_batches_per_iter))
    say(f"Iter #{i}: {rates[-1]:.1f} img/sec per {kind}")

# 95 of 100 measurements of a normal distribution lie within 1.96 standard deviations of the mean.
mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
say(f"Total img/sec on {hvd.size()} {kind}(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
hvd.shutdown()
