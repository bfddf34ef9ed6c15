"""torch's gloo on the ranks of `gradwire bench allreduce`: medians by size, as JSON from rank 0.

gloo_allreduce.py STORE REPEAT SIZE...
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    store_path, repeat, sizes = sys.argv[1], int(sys.argv[2]), [int(s) for s in sys.argv[3:]]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    store = dist.FileStore(store_path, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    medians = {}
    for size in sizes:
        x = torch.randn(size // 4)
        seconds = []
        for i in range(repeat + 2):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(x)
            if i >= 2:
                seconds.append(time.perf_counter() - start)
            x.normal_()
        medians[str(size)] = statistics.median(seconds)
    if rank == 0:
        print(json.dumps(medians))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
