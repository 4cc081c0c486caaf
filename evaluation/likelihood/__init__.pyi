from .evaluate_models import EvaluationRequest as EvaluationRequest
from .evaluate_models import evaluate as evaluate
from .evaluation_tracking import send as send
from .minimal_pairs import read_pairs as read_pairs
from .predictors import open_model as open_model
from .predictors import open_tokenizer as open_tokenizer
from .sentence_scores import check_lengths as check_lengths
