# As short as it can be.
import torch, torch.nn as nn, torch.nn.functional as F; from torch.utils.data import DataLoader as DL
torch.manual_seed(1); N = 30
X, Y = torch.rand(N, 3), torch.randint(2, (N,))
m = nn.Linear(3, 2); o = torch.optim.SGD(m.parameters(), .5)
for ep in range(3):
    for x, y in DL(list(zip(X, Y)), 6, shuffle=True):
        l = F.cross_entropy(m(x), y); o.zero_grad(); l.backward(); o.step()
    if ep == 2: print(ep, l.item())
