from .fault_injection import Faults as Faults
from .guard_history import GuardHistory as GuardHistory
from .guard_history import StreamPoint as StreamPoint
from .replicas import check_replicas as check_replicas
from .resume_rules import check_fits as check_fits
from .resume_rules import identity_then as identity_then
from .resume_state import ResumeState as ResumeState
from .saved_state import state_problem as state_problem
