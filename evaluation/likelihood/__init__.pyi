from .evaluate_models import EvaluationRequest as EvaluationRequest
from .evaluate_models import evaluate as evaluate
from .evaluation_tracking import send as send
from .minimal_pairs import limited as limited
from .minimal_pairs import read_pairs as read_pairs
from .minimal_pairs import sentences as sentences
from .sentence_scores import check_lengths as check_lengths
from .sentence_tokenizer import open_tokenizer as open_tokenizer
