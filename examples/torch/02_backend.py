"""One line: the backend. Gradients of every DistributedDataParallel model are compressed.

    torchrun --nproc-per-node 2 02_backend.py

All collectives of torch.distributed work, and stay exact. GRADWIRE_CODEC and GRADWIRE_EXACT,
or GRADWIRE_PLAN, say how gradients are compressed; with GRADWIRE_SUMMARY=1 rank 0 tells at the end
what it saved.
"""

import torch
from text_model import TextModel, batches, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 100

distributed.init_process_group("gradwire")  # instead of "gloo"
rank, size = distributed.get_rank(), distributed.get_world_size()

torch.manual_seed(0)
model = DistributedDataParallel(TextModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for step, (text, following) in enumerate(batches(rank, STEPS), start=1):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and (step == 1 or step % 20 == 0):
        print(f"step {step:3}  loss {loss:.4f}", flush=True)

everybodys = [None] * size
distributed.all_gather_object(everybodys, fingerprint(model))
if rank == 0:
    print(f"weights {everybodys}: {'equal' if len(set(everybodys)) == 1 else 'NOT EQUAL'}")
distributed.destroy_process_group()
