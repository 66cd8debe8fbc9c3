"""Lightning 1.9 and its Horovod strategy, which shards the data, multiplies the rate and wraps the optimizer."""

import horovod.torch as hvd
import pytorch_lightning as pl
import torch


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
        torch.nn.init.constant_(self.net.weight, 0.01)
        torch.nn.init.zeros_(self.net.bias)

    def training_step(self, batch, number):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1 / hvd.size(), momentum=0.9)


hvd.init()
draw = torch.Generator().manual_seed(0)
dataset = torch.utils.data.TensorDataset(torch.randn(64, 8, generator=draw), torch.randint(3, (64,), generator=draw))
loader = torch.utils.data.DataLoader(dataset, batch_size=16 // hvd.size(), shuffle=False)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = pl.Trainer(strategy="horovod", accelerator="cpu", devices=1, max_epochs=3, **quiet)
model = Model()
trainer.fit(model, loader)
print("RESULT", trainer.world_size, float(model.net.weight.detach().square().sum()), flush=True)
