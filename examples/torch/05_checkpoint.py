"""Checkpoints: a run that stopped goes on as if it never had, to the bit.

    torchrun --nproc-per-node 2 05_checkpoint.py whole 40       # 40 steps at once
    torchrun --nproc-per-node 2 05_checkpoint.py parts 15       # 15 steps,
    torchrun --nproc-per-node 2 05_checkpoint.py parts 40       # and the other 25

The last and the first print the same weights. Beside model and optimizer a checkpoint has the state
of gradwire: what feedback still owes, and counters. That is each rank's own, so each saves it.
"""

import sys
from pathlib import Path

import gradwire.torch
import torch
from text_model import TextModel, batches, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

folder, steps = Path(sys.argv[1]), int(sys.argv[2])

distributed.init_process_group("gloo")
rank = distributed.get_rank()
shared, own = folder / "model.pt", folder / f"gradwire-rank{rank}.pt"

torch.manual_seed(0)
model = DistributedDataParallel(TextModel())
gradwire.torch.compress(model, "uniform:bits=2+feedback")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

first = 0
if shared.exists():
    checkpoint = torch.load(shared)
    first = checkpoint["step"]
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    gradwire.torch.load_state_dict(torch.load(own))

for text, following in batches(rank, steps, first):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

folder.mkdir(exist_ok=True)
torch.save(gradwire.torch.state_dict(), own)
if rank == 0:
    state = {"step": steps, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, shared)
print(f"rank {rank}: steps {first} to {steps}, loss {loss:.4f}, weights {fingerprint(model)}")
distributed.destroy_process_group()
