"""Step 9: one rank saves and prints. Done."""

import os
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import workbench.torch as hvd
from workbench import data
from workbench.data.sampler import ShardedSampler

BATCH, EPOCHS, CHECKPOINT = 72, 2, "digits.pt"
torch.set_default_dtype(torch.float64)  # so that equal results are equal to many digits

hvd.init()
gpus = torch.cuda.device_count()  # that this rank may see: all of the machine, or its own
device = f"cuda:{hvd.local_rank() % gpus}" if gpus else "cpu"
if gpus:
    print(f"rank {hvd.rank()} takes GPU {torch.cuda.get_device_properties(device).uuid}", file=sys.stderr)
torch.set_num_threads(max(1, os.cpu_count() // hvd.local_size()))

digits = data.digits()
train_set = TensorDataset(torch.tensor(digits.train_x).double(), torch.tensor(digits.train_y))
test_set = TensorDataset(torch.tensor(digits.test_x).double(), torch.tensor(digits.test_y))
train_sampler = ShardedSampler(train_set, hvd.rank(), hvd.size())
train_loader = DataLoader(train_set, batch_size=BATCH // hvd.size(), sampler=train_sampler)
test_loader = DataLoader(test_set, batch_size=BATCH, sampler=range(hvd.rank(), len(test_set), hvd.size()))

layers = [torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

if os.path.exists(CHECKPOINT):  # go on from there
    saved = torch.load(CHECKPOINT, map_location=device)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

for epoch in range(EPOCHS):
    train_sampler.set_epoch(epoch)
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()

right, seen = 0, 0
with torch.no_grad():
    for images, labels in test_loader:
        right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum().item()
        seen += len(labels)
right, seen = hvd.allreduce(torch.tensor([right, seen]), op=hvd.Sum).tolist()
accuracy = right / seen

if hvd.rank() == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, CHECKPOINT)
    print(f"{accuracy:.1%} of the test digits are read right")
