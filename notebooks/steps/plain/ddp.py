"""The finished script of lesson 10 in plain PyTorch: DistributedDataParallel, started by torchrun or workbench run."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from workbench import data

BATCH, EPOCHS, CHECKPOINT = 72, 2, "digits.pt"
torch.set_default_dtype(torch.float64)  # so that equal results are equal to many digits

dist.init_process_group("gloo")  # "nccl" with GPUs
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(max(1, os.cpu_count() // int(os.environ["LOCAL_WORLD_SIZE"])))

digits = data.digits()  # 1,440 images to train: DistributedSampler repeats none on 2 ranks
train_set = TensorDataset(torch.tensor(digits.train_x).double(), torch.tensor(digits.train_y))
test_set = TensorDataset(torch.tensor(digits.test_x).double(), torch.tensor(digits.test_y))
train_sampler = DistributedSampler(train_set)
train_loader = DataLoader(train_set, batch_size=BATCH // size, sampler=train_sampler)
test_loader = DataLoader(test_set, batch_size=BATCH, sampler=range(rank, len(test_set), size))

layers = [torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
model = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

saved = [torch.load(CHECKPOINT) if rank == 0 and os.path.exists(CHECKPOINT) else None]
dist.broadcast_object_list(saved)  # DDP sends the weights, and not the optimizer's state
if saved[0]:
    model.load_state_dict(saved[0]["model"])
    optimizer.load_state_dict(saved[0]["optimizer"])
trained = DistributedDataParallel(model)  # sends rank 0's weights; its hooks average the gradients

for epoch in range(EPOCHS):
    train_sampler.set_epoch(epoch)
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(trained(images), labels)
        loss.backward()
        optimizer.step()

right, seen = 0, 0
with torch.no_grad():
    for images, labels in test_loader:
        right += (model(images).argmax(dim=1) == labels).sum().item()
        seen += len(labels)
counts = torch.tensor([right, seen])
dist.all_reduce(counts)
accuracy = (counts[0] / counts[1]).item()

if rank == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, CHECKPOINT)
    print(f"{accuracy:.1%} of the test digits are read right")
