"""The finished script of lesson 10 in plain PyTorch: fully_shard (FSDP2), started by torchrun or workbench run."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
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
for parameter in model.parameters():
    dist.broadcast(parameter.data, src=0)  # fully_shard cuts each rank's own weights: first they must be equal
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))  # gathers for each pass, reduces and scatters the gradients
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # of this rank's part

saved = [torch.load(CHECKPOINT) if rank == 0 and os.path.exists(CHECKPOINT) else None]
dist.broadcast_object_list(saved)
if saved[0]:  # whole tensors, of which each rank takes its part
    whole = StateDictOptions(full_state_dict=True)
    set_state_dict(model, optimizer, model_state_dict=saved[0][0], optim_state_dict=saved[0][1], options=whole)

for epoch in range(EPOCHS):
    train_sampler.set_epoch(epoch)
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
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

whole = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))  # all ranks gather them
if rank == 0:
    torch.save(whole, CHECKPOINT)
    print(f"{accuracy:.1%} of the test digits are read right")
