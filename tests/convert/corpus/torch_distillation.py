# A student learns from a teacher that stays as it is.
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
T, alpha = 2.0, 0.7
x = torch.randn(48, 8)
y = torch.randint(0, 3, (48,))
train_loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)

teacher = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
student = nn.Linear(8, 3)
teacher.eval()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
ce_loss = nn.CrossEntropyLoss()

for epoch in range(3):
    running_loss = 0.0
    for inputs, labels in train_loader:
        optimizer.zero_grad()
        with torch.no_grad():
            teacher_logits = teacher(inputs)
        student_logits = student(inputs)
        soft_targets_loss = F.kl_div(
            F.log_softmax(student_logits / T, dim=-1), F.softmax(teacher_logits / T, dim=-1), reduction="mean"
        ) * T * T
        label_loss = ce_loss(student_logits, labels)
        loss = alpha * soft_targets_loss + (1 - alpha) * label_loss
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    print(f"Epoch {epoch+1}/3, Loss: {running_loss / len(train_loader)}")
