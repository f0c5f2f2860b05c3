"""The built-in models, each with its data: synthetic, or the text of Python's own standard library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.demo.data import Text, sample_batch, standard_library_text
from thinwire.demo.model import ByteTransformer, ModelSize, next_byte_loss

Inputs = Tensor | tuple[Tensor, ...]
Batch = Callable[[int, int], tuple[Inputs, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]
Workload = tuple[nn.Module, Batch, Loss]
"""A model, ``batch(step, rank)`` that gives inputs and targets, and ``loss(model(inputs), targets)``.

Inputs are what the model is called with: one tensor, or a tuple of several arguments.
"""

NUM_CLASSES = 10
NUM_FEATURES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltIn:
    """A model that comes with the benchmark."""

    make: Callable[[int], Workload]
    """Takes the batch size on each worker."""
    about: str
    batch_size: int
    optimizer: str
    learning_rate: float


def _seed(step: int, rank: int) -> int:
    """Of a batch: no two are alike, whatever the number of workers."""
    return 1 + step * 4096 + rank


def language_model(batch_size: int) -> Workload:
    """The demo's byte-level transformer."""
    size = ModelSize()

    def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
        return sample_batch(_text().train, batch_size, size.sequence_length, _seed(step, rank))

    return ByteTransformer(size), batch, next_byte_loss


@lru_cache(maxsize=1)
def _text() -> Text:
    return standard_library_text()


def _images(batch_size: int) -> Batch:
    """Noisy 32x32 images of NUM_CLASSES random patterns."""
    patterns = torch.randn(NUM_CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(0))

    def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(_seed(step, rank))
        labels = torch.randint(NUM_CLASSES, (batch_size,), generator=generator)
        noise = torch.randn(batch_size, 3, 32, 32, generator=generator)
        return functional.interpolate(patterns[labels], scale_factor=4.0) + noise, labels

    return batch


def vgg(batch_size: int) -> Workload:
    """VGG for small images: six convolutions with batch normalisation; linear layers hold 99 % of the parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    features = channels * 4 * 4
    layers += [nn.Flatten(), nn.Linear(features, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    layers.append(nn.Linear(4096, NUM_CLASSES))
    return nn.Sequential(*layers), _images(batch_size), functional.cross_entropy


class Residual(nn.Module):
    """Two convolutions with batch normalisation, added to the input."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, channels, height, width]`` to the same, with ``width`` channels, smaller by ``stride``."""
        output: Tensor = functional.relu(self.shortcut(x) + self.body(x))
        return output


def resnet(batch_size: int) -> Workload:
    """ResNet-18 for small images, with half the usual channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    channels = 32
    for width in (32, 64, 128, 256):
        layers.append(Residual(channels, width, stride=1 if width == channels else 2))
        layers.append(Residual(width, width, stride=1))
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, NUM_CLASSES)]
    return nn.Sequential(*layers), _images(batch_size), functional.cross_entropy


def mlp(batch_size: int) -> Workload:
    """One layer of 4096x4096 between two tiny ones."""
    model = nn.Sequential(
        nn.Linear(NUM_FEATURES, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
    )
    centres = 2 * torch.randn(10, NUM_FEATURES, generator=torch.Generator().manual_seed(0))

    def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(_seed(step, rank))
        labels = torch.randint(10, (batch_size,), generator=generator)
        return centres[labels] + torch.randn(batch_size, NUM_FEATURES, generator=generator), labels

    return model, batch, functional.cross_entropy


BUILT_IN: Mapping[str, BuiltIn] = {
    "lm": BuiltIn(
        make=language_model,
        about="byte-level transformer",
        batch_size=4,
        optimizer="adamw",
        learning_rate=4e-4,
    ),
    "vgg": BuiltIn(
        make=vgg,
        about="convolutions with batch normalisation, and large linear layers",
        batch_size=32,
        optimizer="sgd",
        learning_rate=0.005,
    ),
    "resnet": BuiltIn(
        make=resnet,
        about="residual blocks with batch normalisation",
        batch_size=16,
        optimizer="sgd",
        learning_rate=0.02,
    ),
    "mlp": BuiltIn(
        make=mlp,
        about="one huge linear layer",
        batch_size=64,
        optimizer="sgd",
        learning_rate=0.01,
    ),
}
