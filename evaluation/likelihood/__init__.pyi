from .evaluate_models import EvaluationRequest as EvaluationRequest
from .evaluate_models import check_pairs as check_pairs
from .evaluate_models import evaluate as evaluate
from .evaluation_tracking import send_evaluation as send_evaluation
