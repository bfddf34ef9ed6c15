"""An ordinary DistributedDataParallel script that says gloo. Nothing in it knows of gradwire.

    torchrun --nproc-per-node 2 01_unchanged.py                    # gradients as fp32
    gradwire run --nproc-per-node 2 01_unchanged.py                # the same, compressed
    GRADWIRE=1 torchrun --nproc-per-node 2 01_unchanged.py         # the same by any launcher

Gradients are compressed; the average of the loss, which the script computes by all_reduce, is not.
"""

import torch
from text_model import TextModel, batches, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 100

distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()

torch.manual_seed(0)
model = DistributedDataParallel(TextModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for step, (text, following) in enumerate(batches(rank, STEPS), start=1):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    if step == 1 or step % 20 == 0:
        mean = loss.detach() / size
        distributed.all_reduce(mean)
        if rank == 0:
            print(f"step {step:3}  loss {mean:.4f}", flush=True)

print(f"rank {rank}: own loss {loss:.9f}, mean {mean:.9f}, weights {fingerprint(model)}")
distributed.destroy_process_group()
