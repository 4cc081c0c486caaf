"""Optimizer state on disk: ZeRO 3 with zero.offload nvme."""

import os

import pytest
from deepspeed.ops.op_builder.cpu import AsyncIOBuilder

from tests.support.ranks import run_ranks


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("MASKWRIGHT_REQUIRE_LIBAIO") and not AsyncIOBuilder().is_compatible(), reason="needs libaio-dev"
)
def test_training_from_disk_is_training_from_memory(tmp_path):
    run_ranks("tests.distributed.nvme_worker", 2, str(tmp_path), timeout=900)  # it builds an extension at first
