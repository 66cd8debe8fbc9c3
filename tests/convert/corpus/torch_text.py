# Text classification with a collate function and offsets.
import torch
from torch import nn
from torch.utils.data import DataLoader

SENTENCES = [("good day sunny", 1), ("bad rain cold", 0), ("sunny good warm", 1), ("cold wind bad", 0)] * 8
VOCAB = {w: i for i, w in enumerate(sorted({w for s, _ in SENTENCES for w in s.split()}))}


def collate_batch(batch):
    labels, text, offsets = [], [], [0]
    for sentence, label in batch:
        labels.append(label)
        tokens = torch.tensor([VOCAB[w] for w in sentence.split()])
        text.append(tokens)
        offsets.append(tokens.size(0))
    return torch.tensor(labels), torch.cat(text), torch.tensor(offsets[:-1]).cumsum(dim=0)


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super(TextClassificationModel, self).__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self):
        initrange = 0.5
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.fc.weight.data.uniform_(-initrange, initrange)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))


torch.manual_seed(6)
dataloader = DataLoader(SENTENCES, batch_size=8, shuffle=True, collate_fn=collate_batch)
model = TextClassificationModel(len(VOCAB), 6, 2)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.1)


def train(dataloader, epoch):
    model.train()
    total_acc, total_count = 0, 0
    for idx, (label, text, offsets) in enumerate(dataloader):
        optimizer.zero_grad()
        predicted_label = model(text, offsets)
        loss = criterion(predicted_label, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total_acc += (predicted_label.argmax(1) == label).sum().item()
        total_count += label.size(0)
        if idx % 2 == 0 and idx > 0:
            print("| epoch {:3d} | {:5d}/{:5d} batches | accuracy {:8.3f}".format(
                epoch, idx, len(dataloader), total_acc / total_count))
            total_acc, total_count = 0, 0


for epoch in range(1, 3):
    train(dataloader, epoch)
    scheduler.step()
