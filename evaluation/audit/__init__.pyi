from .compare_results import AuditResult as AuditResult
from .compare_results import compare_results as compare_results
from .repeat_plan import AuditPlan as AuditPlan
from .repeat_plan import plan_audit as plan_audit
from .repeat_plan import repeat_settings as repeat_settings
