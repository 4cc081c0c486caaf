"""JSON exchange between ranks, and hostile messages."""

from tests.support.ranks import run_ranks


def test_ranks_exchange_json_and_load_no_pickle(tmp_path):
    run_ranks("tests.pretrain.distributed.json_worker", 2, str(tmp_path))
