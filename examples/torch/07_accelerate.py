"""Accelerate, on CPU: one line after prepare().

    torchrun --nproc-per-node 2 07_accelerate.py

On CPU Accelerate takes gloo and refuses other backends. compress() takes the model that prepare()
returns; or leave that line out, and run the script with `gradwire run`.
"""

import gradwire.torch
import torch
from accelerate import Accelerator
from text_model import TextDataset, TextModel, fingerprint
from torch import nn
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = TextModel()
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.AdamW(model.parameters(), lr=2e-3),
    DataLoader(TextDataset(samples=12_800), batch_size=64, shuffle=True),
)
gradwire.torch.compress(model, "grid:step=0.5")

for step, (text, following) in enumerate(loader, start=1):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if step == 1 or step % 20 == 0:
        mean = accelerator.reduce(loss.detach(), "mean")  # exact
        accelerator.print(f"step {step:3}  loss {mean:.4f}")

accelerator.print(gradwire.torch.stats(model))
print(f"rank {accelerator.process_index}: weights {fingerprint(model)}")
accelerator.end_training()
