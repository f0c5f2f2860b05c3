"""A training script ends with its own exit code, whatever it still refers to and whatever is under way."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import thinwire

def main(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01)
    sync = thinwire.attach(ddp, "onebit", scheme="alltoall")
    for _ in range(3):
        ddp(torch.randn(2, 64)).sum().backward()
    if sys.argv[3] == "detach":
        sync.detach()
    if sys.argv[3] == "fails":
        def fail(gradient):
            raise ValueError("of the user's own")
        ddp.module[0].weight.register_hook(fail)
        try:
            ddp(torch.randn(2, 64)).sum().backward()
        except ValueError:
            sys.exit(3)  # with collectives of the other layers under way
    dist.destroy_process_group()

main(int(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize(("end", "code"), [("detach", 0), ("attached", 0), ("fails", 3)])
def test_scripts_end_with_their_own_exit_code(tmp_path: Path, end: str, code: int) -> None:
    for attempt in range(3):
        command = [sys.executable, "-c", SCRIPT]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), str(tmp_path / str(attempt)), end], stderr=subprocess.PIPE, text=True
            )
            for rank in range(2)
        ]
        errors = [rank.communicate(timeout=60)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [code, code], "\n".join(errors)
