import torch
from model import GPT
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Training:
    def __init__(self):
        self.model = GPT().cuda()
        self.forward = torch.compile(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, batch):
        tokens = batch[0].cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = self.forward(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


def batches():
    return DataLoader(TensorDataset(torch.randint(512, (64, 64))), batch_size=8, pin_memory=True)
