"""A training script that ends in order ends with exit code 0, whatever it still refers to."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import thinwire

def main(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
    sync = thinwire.attach(ddp, "onebit", scheme="alltoall")
    for _ in range(3):
        ddp(torch.randn(2, 64)).sum().backward()
    if sys.argv[3] == "detach":
        sync.detach()
    dist.destroy_process_group()

main(int(sys.argv[1]), sys.argv[2])
"""


def test_scripts_end_well_with_and_without_detaching(tmp_path: Path) -> None:
    for end in ("detach", "attached"):
        command = [sys.executable, "-c", SCRIPT]
        ranks = [
            subprocess.Popen([*command, str(rank), str(tmp_path / end), end], stderr=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
