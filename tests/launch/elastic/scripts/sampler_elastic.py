"""Uses ElasticSampler as the documentation says, and writes down which samples each committed step has used.

What belongs to a step is in the state, gathered from all ranks in the step itself: what is not committed is forgotten
with the step.
"""

import argparse
import time

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=600)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--commit-every", type=int, default=3)
parser.add_argument("--pause", type=float, default=0.02)
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
data = torch.arange(args.samples)
sampler = hvd.elastic.ElasticSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, used=[])


@hvd.elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {len(state.used)}", flush=True)
    for state.epoch in range(state.epoch, args.epochs):
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            model(batch.float()[:, None]).mean().backward()
            optimizer.step()
            everybody = hvd.allgather(batch, name="used").tolist()
            state.sampler.record_batch(number, len(batch))
            state.used.append((state.epoch, hvd.size(), everybody))
            time.sleep(args.pause)
            if number % args.commit_every == 0:
                state.commit()
        state.sampler.set_epoch(state.epoch + 1)
        state.commit()


train(state)
for epoch in range(args.epochs):
    used = [each for number, _, everybody in state.used if number == epoch for each in everybody]
    assert set(used) == set(range(args.samples)), "a sample was lost"
    # Where they do not come out even, the sampler takes fewer than size() twice, at the end of an epoch.
    last = next(size for number, size, _ in reversed(state.used) if number == epoch)
    assert len(used) - args.samples < last, (len(used), last)
sizes = sorted({size for _, size, _ in state.used})
print(f"done {args.epochs} {args.epochs} {sizes} worst 0", flush=True)
