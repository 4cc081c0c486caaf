from .evaluate_models import check_pairs as check_pairs
from .evaluate_models import evaluate as evaluate
from .evaluation_request import EvaluationRequest as EvaluationRequest
from .evaluation_request import Form as Form
from .evaluation_request import StrategyName as StrategyName
from .evaluation_tracking import send_evaluation as send_evaluation
