"""For very slow links: one number in a hundred of every gradient at once, and the rest later.

    torchrun --nproc-per-node 2 10_residual.py

Momentum acts where gradients are made, before anything is sent; so the optimizer is an SGD without
momentum. An unchanged script that trains by SGD with momentum needs no change:

    gradwire run --residual 0.01 --warmup 40 --nproc-per-node 2 train.py

Large models take a density of 0.001 (docs/residual.md). This one is small.
"""

import gradwire.torch
import torch
from text_model import TextModel, batches, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 200

distributed.init_process_group("gloo")
rank = distributed.get_rank()

torch.manual_seed(0)
model = DistributedDataParallel(TextModel())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
gradwire.torch.residual(
    model,
    optimizer,
    density=0.01,
    momentum=0.9,
    warmup=40,  # steps with whole gradients, while these are large and change quickly
)

for step, (text, following) in enumerate(batches(rank, STEPS), start=1):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step == 1 or step % 40 == 0):
        print(f"step {step:3}  loss {loss:.4f}", flush=True)

if rank == 0:
    print(gradwire.torch.stats(model))
print(f"rank {rank}: weights {fingerprint(model)}")
distributed.destroy_process_group()
