"""A byte-level transformer: predicts the next byte of a text from the bytes before it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """The shape of a :class:`ByteTransformer`; the default has about 11 million parameters."""

    width: int = 384
    num_layers: int = 6
    num_heads: int = 6
    sequence_length: int = 128


class Block(nn.Module):
    """Pre-norm causal self-attention and a four times wider GELU layer, each added to its input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width, bias=False)
        self.mlp_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, length, width]`` to the same shape."""
        batch, length, width = x.shape
        qkv = self.query_key_value(self.attention_norm(x))
        query, key, value = qkv.view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        output: Tensor = x + self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(x))))
        return output


class ByteTransformer(nn.Module):
    """Logits of the next byte at every position, from learned byte and position embeddings and a tied head."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_BYTES, size.width)
        self.position = nn.Parameter(torch.empty(size.sequence_length, size.width))
        self.blocks = nn.Sequential(*(Block(size.width, size.num_heads) for _ in range(size.num_layers)))
        self.norm = nn.LayerNorm(size.width)
        self._initialise(size.num_layers)

    def _initialise(self, num_layers: int) -> None:
        # What is added to the residual stream starts smaller the more of it there is (GPT-2), so that the depth of
        # the model does not set the scale of its output.
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                is_residual = name.endswith(("attention_out.weight", "mlp_out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * num_layers) ** 0.5 if is_residual else 0.02)

    def forward(self, text: Tensor) -> Tensor:
        """``[batch, length]`` int64 bytes, no longer than the sequence length, to ``[batch, length, 256]`` logits."""
        x = self.embedding(text) + self.position[: text.shape[1]]
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per byte of ``[batch, length, 256]`` logits against ``[batch, length]`` bytes."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
