# Fine-tuning: a frozen body, a new head, groups of parameters, get_loaders() that returns two loaders.
import copy
import time

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset, random_split


def get_loaders(batch_size):
    torch.manual_seed(5)
    full = TensorDataset(torch.randn(80, 10), torch.randint(0, 2, (80,)))
    train_set, val_set = random_split(full, [64, 16])
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, num_workers=0)
    val_loader = DataLoader(val_set, batch_size=batch_size, shuffle=False)
    return train_loader, val_loader


def build_model():
    body = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
    for param in body.parameters():
        param.requires_grad = False
    return nn.ModuleDict({"body": body, "neck": nn.Linear(16, 8), "head": nn.Linear(8, 2)})


def forward(model, x):
    return model["head"](torch.relu(model["neck"](model["body"](x))))


def train_model(model, train_loader, val_loader, criterion, optimizer, scheduler, num_epochs=25):
    since = time.time()
    best_acc = 0.0
    best = copy.deepcopy(model.state_dict())
    for epoch in range(num_epochs):
        print(f"Epoch {epoch}/{num_epochs - 1}")
        model.train()
        running_loss = 0.0
        for inputs, labels in train_loader:
            optimizer.zero_grad()
            with torch.set_grad_enabled(True):
                outputs = forward(model, inputs)
                loss = criterion(outputs, labels)
                loss.backward()
                optimizer.step()
            running_loss += loss.item() * inputs.size(0)
        scheduler.step()
        epoch_loss = running_loss / len(train_loader.dataset)
        print(f"train Loss: {epoch_loss:.4f}")

        model.eval()
        correct = 0
        with torch.no_grad():
            for inputs, labels in val_loader:
                correct += (forward(model, inputs).argmax(1) == labels).sum().item()
        acc = correct / len(val_loader.dataset)
        print(f"val Acc: {acc:.4f}")
        if acc > best_acc:
            best_acc = acc
            best = copy.deepcopy(model.state_dict())
    time_elapsed = time.time() - since
    print(f"Training complete in {time_elapsed // 60:.0f}m {time_elapsed % 60:.0f}s")
    model.load_state_dict(best)
    return model


train_loader, val_loader = get_loaders(batch_size=16)
model_ft = build_model()
criterion = nn.CrossEntropyLoss()
optimizer_ft = optim.SGD(
    [{"params": model_ft["neck"].parameters(), "lr": 1e-3}, {"params": model_ft["head"].parameters()}],
    lr=1e-2,
    momentum=0.9,
)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_ft, step_size=2, gamma=0.1)
model_ft = train_model(model_ft, train_loader, val_loader, criterion, optimizer_ft, exp_lr_scheduler, num_epochs=3)
torch.save(model_ft.state_dict(), "finetuned.pt")
