"""OpenCLIP's loop with ``--horovod``: features are gathered from all ranks, gradients flow through the gathering."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import cpu_torchvision  # noqa: F401 - before torchvision
import horovod.torch as hvd
import open_clip
import torch
from open_clip_train.distributed import init_distributed_device
from open_clip_train.params import parse_args
from open_clip_train.train import train_one_epoch

VISION = {"image_size": 16, "layers": 2, "width": 64, "patch_size": 8}
TEXT = {"context_length": 8, "vocab_size": 64, "width": 64, "heads": 2, "layers": 2}

where = Path(f"tiny-{random.getrandbits(40)}")
where.mkdir()
(where / "tiny.json").write_text(json.dumps({"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT}))
open_clip.add_model_config(where)
args = parse_args(["--horovod", "--gather-with-grad", "--device", "cpu", "--precision", "fp32", "--model", "tiny"])
args.distill, args.wandb, args.skip_scheduler, args.world_size = False, False, True, 1
device = init_distributed_device(args)
args.batch_size = 32 // args.world_size
torch.manual_seed(0)
model = open_clip.create_model("tiny", device=device, output_dict=True)
images, texts = torch.randn(64, 3, 16, 16), torch.randint(1, 63, (64, 8))
mine = [slice(i + args.rank * args.batch_size, i + (args.rank + 1) * args.batch_size) for i in (0, 32)]


class Batches(list):
    num_batches, num_samples = 2, 64


data = SimpleNamespace(dataloader=Batches((images[part], texts[part]) for part in mine), set_epoch=lambda epoch: None)
# Horovod's allgather averages the gradients that flow back through it, and its optimizer averages them again.
scaled = [each for name, each in model.named_parameters() if name != "logit_scale"]
optimizer = torch.optim.SGD([{"params": scaled, "lr": 0.05 * hvd.size()}, {"params": [model.logit_scale]}], lr=0.05)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
loss = open_clip.create_loss(args)
for epoch in range(3):
    train_one_epoch(model, {"train": data}, loss, epoch, optimizer, None, None, None, args)
total = sum(float(each.detach().double().square().sum()) for each in model.parameters())
print("RESULT", hvd.size(), total, flush=True)
