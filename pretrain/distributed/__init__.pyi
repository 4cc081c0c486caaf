from .network_interfaces import interface_to as interface_to
from .rank_agreement import EndOfRun as EndOfRun
from .rank_agreement import all_gather_json as all_gather_json
from .rank_agreement import broadcast_json as broadcast_json
from .rank_agreement import run_on_all_ranks as run_on_all_ranks
from .rank_agreement import run_on_rank_zero as run_on_rank_zero
from .threads import threads_of as threads_of
from .threads import usable_cores as usable_cores
