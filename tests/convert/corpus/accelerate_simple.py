"""A script for Accelerate."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(7)
    x = torch.randn(48, 6)
    y = (x[:, 0] > 0).long()
    train_dataloader = DataLoader(TensorDataset(x, y), batch_size=6, shuffle=True)
    eval_dataloader = DataLoader(TensorDataset(x, y), batch_size=24)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for epoch in range(2):
        model.train()
        for step, (inputs, targets) in enumerate(train_dataloader):
            outputs = model(inputs)
            loss = torch.nn.functional.cross_entropy(outputs, targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        correct = total = 0
        for inputs, targets in eval_dataloader:
            with torch.no_grad():
                predictions = model(inputs).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, targets))
            correct += (predictions == references).sum().item()
            total += len(references)
        accelerator.print(f"epoch {epoch}: {correct / total:.3f}")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), "accelerated.pt")


if __name__ == "__main__":
    main()
