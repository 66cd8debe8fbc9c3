# Two networks, two optimizers.
import torch
from torch import nn
from torch.utils.data import DataLoader

data = torch.randn(64, 2)
loader = DataLoader(data, batch_size=16, shuffle=True)
G = nn.Linear(4, 2)
D = nn.Linear(2, 1)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3)
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
for epoch in range(2):
    for real in loader:
        fake = G(torch.randn(len(real), 4))
        d_loss = bce(D(real), torch.ones(len(real), 1)) + bce(D(fake.detach()), torch.zeros(len(real), 1))
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        g_loss = bce(D(fake), torch.ones(len(real), 1))
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
# decide 15: all ranks draw the same numbers here
