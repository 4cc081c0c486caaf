"""Random initial weights of each model family."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from pretrain.model.encoder_shape import EncoderShape

_CUTOFF = 2.0  # standard deviations; ModernBERT draws again beyond them
_INTO_RESIDUAL = ("attention_out.weight", "mlp_out.weight")


def draw_weights(parameters: Iterable[tuple[str, nn.Parameter]], shape: EncoderShape, seed: int) -> None:
    """Draw an encoder's weights, the same on every rank: zero biases, unit norms, and

    - BERT and RoBERTa: normal(0, init_std) everywhere else, zeros for the padding token; with scaled_init, the
      deviation of what is added to the residual stream is divided by sqrt(2 * layers), as in Megatron-LM (Shoeybi et
      al., 2019) after GPT-2 (Radford et al., 2019);
    - ModernBERT: normal(0, init_std) cut off at two standard deviations; scaled in that way always, the head too.
    """
    generator = torch.Generator().manual_seed(seed)
    depth = math.sqrt(2 * shape.layers)
    with torch.no_grad():
        for name, parameter in parameters:
            if "norm" in name:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            elif name.endswith("bias"):
                parameter.zero_()
            elif shape.arch == "modernbert":
                scale = depth if name.endswith((*_INTO_RESIDUAL, "head_dense.weight")) else 1.0
                _truncated_normal(parameter, shape.init_std / scale, generator)
            else:
                scale = depth if shape.scaled_init and name.endswith(_INTO_RESIDUAL) else 1.0
                parameter.normal_(0.0, shape.init_std / scale, generator=generator)
                if name == "word_embedding":
                    parameter[shape.pad_id].zero_()


def _truncated_normal(parameter: Tensor, std: float, generator: torch.Generator) -> None:
    nn.init.trunc_normal_(parameter, 0.0, std, -_CUTOFF * std, _CUTOFF * std, generator=generator)
