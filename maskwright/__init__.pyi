from .data import DataSet as DataSet
from .data import prepare as prepare
from .data import train_tokenizer as train_tokenizer
from .models import evaluate as evaluate
from .models import fill as fill
from .training import Run as Run
from .training import UserError as UserError
from .training import train as train
