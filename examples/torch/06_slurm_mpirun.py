"""Without torchrun: started by srun or mpirun, one process per rank.

    sbatch 06_slurm.sbatch
    mpirun -n 2 -x GRADWIRE=1 python 06_slurm_mpirun.py

PyTorch wants RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment. Launchers have the
first two under names of their own; the address is that of the host where rank 0 runs.
"""

import os

import torch
from text_model import TextModel, batches, fingerprint
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 40

# mpirun first: inside a job of Slurm both are set, and then Slurm's speak of the batch script.
LAUNCHERS = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),  # srun
]


def take_place_from_launcher():
    """Sets what PyTorch wants, unless it is set (as by torchrun). One host unless told more."""
    for rank, size, local_rank in LAUNCHERS:
        if rank in os.environ:
            os.environ.setdefault("RANK", os.environ[rank])
            os.environ.setdefault("WORLD_SIZE", os.environ[size])
            os.environ.setdefault("LOCAL_RANK", os.environ.get(local_rank, "0"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")


take_place_from_launcher()
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()

torch.manual_seed(0)
model = DistributedDataParallel(TextModel())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for text, following in batches(rank, STEPS):
    loss = nn.functional.cross_entropy(model(text), following)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

print(f"rank {rank} of {size}: loss {loss:.4f}, weights {fingerprint(model)}")
distributed.destroy_process_group()
