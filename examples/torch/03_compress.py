"""A say in how: codecs by layer, layers that stay exact, feedback, and what it all saved.

    torchrun --nproc-per-node 2 03_compress.py

The process group may be gloo or gradwire; compress() works on a model.
"""

import gradwire.torch
import torch
from text_model import TextModel, batches, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 100
EXACT_STEPS = 5  # while the first gradients are large and strange; most trainings do not need it

distributed.init_process_group("gloo")
rank = distributed.get_rank()

torch.manual_seed(0)
model = DistributedDataParallel(TextModel())
gradwire.torch.compress(
    model,
    "grid:step=0.5",  # for every layer about which nothing else is said
    exact=["embedding.*"],  # patterns as in a shell, for names of model.module.named_parameters()
    # With feedback, what a codec held back is added to the next gradient; `sign` needs that.
    codecs={"head.*": "uniform:bits=4,bucket=128", "deeper.*": "sign+feedback"},
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def train_step(text, following):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for step, batch in enumerate(batches(rank, STEPS), start=1):
    if step <= EXACT_STEPS:
        with gradwire.torch.exact():
            loss = train_step(*batch)
    else:
        loss = train_step(*batch)
    if rank == 0 and (step == 1 or step % 20 == 0):
        print(f"step {step:3}  loss {loss:.4f}", flush=True)

if rank == 0:
    print(gradwire.torch.stats(model))
print(f"rank {rank}: weights {fingerprint(model)}")
distributed.destroy_process_group()
