"""Parameter groups of the real encoder."""

import re

import torch

from pretrain.config import OptimConfig
from pretrain.model.encoder import Encoder
from pretrain.model.shape import EncoderShape
from pretrain.optim import build_optimizer, parameter_groups

SHAPE = EncoderShape(vocab_size=70, layers=2, hidden=16, heads=2, intermediate=24, max_positions=12, pad_id=0)
MATRICES = r"layers\.\d+\.(qkv|attention_out|mlp_in|mlp_out)\.weight|head_dense\.weight"


def test_every_parameter_is_in_one_group_and_matrices_alone_decay():
    encoder = Encoder(SHAPE)
    decayed, plain = parameter_groups(encoder, 0.1)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in encoder.named_parameters()}
    grouped = [names[id(parameter)] for group in (decayed, plain) for parameter in group["params"]]
    assert sorted(grouped) == sorted(names.values())
    assert len(set(grouped)) == len(grouped)
    decayed_names = {names[id(parameter)] for parameter in decayed["params"]}
    assert decayed_names == {name for name in names.values() if re.fullmatch(MATRICES, name)}
    assert len(decayed_names) == 4 * SHAPE.layers + 1


def test_decay_moves_matrices_and_nothing_else():
    encoder = Encoder(SHAPE)
    encoder.initialize(3)
    for parameter in encoder.parameters():
        parameter.data.add_(0.5)
        parameter.grad = torch.zeros_like(parameter)
    before = {name: parameter.detach().clone() for name, parameter in encoder.named_parameters()}
    build_optimizer(encoder, OptimConfig(lr=0.1, weight_decay=0.2)).step()
    for name, parameter in encoder.named_parameters():
        factor = 1 - 0.1 * 0.2 if re.fullmatch(MATRICES, name) else 1.0
        torch.testing.assert_close(parameter.detach(), before[name] * factor, msg=name)


def test_optimizer_has_the_config_s_settings():
    config = OptimConfig(lr=3e-3, betas=(0.7, 0.8), eps=1e-5, weight_decay=0.2)
    optimizer = build_optimizer(Encoder(SHAPE), config)
    for group, decay in zip(optimizer.param_groups, [0.2, 0.0], strict=True):
        assert (group["lr"], tuple(group["betas"]), group["eps"]) == (3e-3, (0.7, 0.8), 1e-5)
        assert group["weight_decay"] == decay
