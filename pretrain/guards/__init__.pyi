from .replicas import check_replicas as check_replicas
from .step_guard import EndOfRun as EndOfRun
from .step_guard import GuardHistory as GuardHistory
from .step_guard import Rollback as Rollback
from .step_guard import StepGuard as StepGuard
from .step_guard import StepResult as StepResult
from .watchdog import Watchdog as Watchdog
