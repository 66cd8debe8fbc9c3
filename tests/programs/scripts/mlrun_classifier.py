"""MLRun's interface to PyTorch, ``use_horovod=True``: it shards the data, broadcasts, and wraps the optimizer."""

import horovod.torch as hvd
import mlrun
import torch
from mlrun.frameworks.pytorch import PyTorchMLRunInterface

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
draw = torch.Generator().manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=draw), torch.randint(3, (64,), generator=draw))
loader = torch.utils.data.DataLoader(dataset, batch_size=16 // hvd.size())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
context = mlrun.MLClientCtx.from_dict({"metadata": {"name": "training", "project": "here"}})  # no server
interface = PyTorchMLRunInterface(model, context=context)
interface.train(loader, torch.nn.CrossEntropyLoss(), optimizer, epochs=3, use_horovod=True, use_cuda=False)
print("\nRESULT", hvd.size(), float(model.weight.detach().square().sum()), flush=True)
