"""The text of Python's own standard library, as bytes: there wherever Python is, and hard enough to learn from."""

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

HELD_OUT_EVERY = 10
"""Every tenth file, in alphabetical order, is held out."""


@dataclass(frozen=True, slots=True)
class Text:
    """Two disjoint texts, each a uint8 vector."""

    train: Tensor
    held_out: Tensor


def standard_library_text(folder: Path | None = None) -> Text:
    """Read the top-level modules (``*.py``, some 4.7 MB) of ``folder``, by default the running Python's own library.

    Whole files are held out, so that no piece of a held-out text is trained on; the same files give the same split.

    Raises:
        FileNotFoundError: if the folder has fewer than ``HELD_OUT_EVERY`` modules, as where Python is zipped.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))
    if len(files) < HELD_OUT_EVERY:
        raise FileNotFoundError(
            f"{folder} holds {len(files)} Python modules, too few to train on; "
            "use a Python whose standard library is installed as plain files"
        )
    held_out = files[::HELD_OUT_EVERY]
    train = [file for index, file in enumerate(files) if index % HELD_OUT_EVERY]
    return Text(train=_read(train), held_out=_read(held_out))


def _read(files: list[Path]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def sample_batch(text: Tensor, batch_size: int, sequence_length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bytes from random places and the bytes that follow them: two int64 ``[batch_size, sequence_length]`` tensors.

    A function of its arguments alone, so that every mode of a comparison sees the same batches.
    """
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - sequence_length, (batch_size, 1), generator=generator)
    windows = text[starts + torch.arange(sequence_length + 1)].long()
    return windows[:, :-1], windows[:, 1:]
