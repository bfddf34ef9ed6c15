"""FSDP2: weights are sharded, and gradients travel compressed to the rank that owns their shard.

    torchrun --nproc-per-node 2 04_fsdp2.py

compress() takes the model after the last fully_shard. Weights are gathered exactly.
"""

import gradwire.torch
import torch
from text_model import TextModel, batches
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 100

distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
mesh = init_device_mesh("cpu", (size,))

torch.manual_seed(0)
model = TextModel()
for layer in (model.hidden, model.deeper):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
gradwire.torch.compress(model, "grid:step=0.5")
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

stats = gradwire.torch.stats(model)  # of what this rank sent: the parts that others own
total = torch.tensor([stats.bytes, stats.sent_bytes])
distributed.all_reduce(total)
if rank == 0:
    exact, sent = total.tolist()
    print(stats)
    print(
        f"all ranks: {sent} bytes of gradients instead of {exact} ({exact / sent:.1f} times less)"
    )
distributed.destroy_process_group()
