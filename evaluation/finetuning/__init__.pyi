from .experiment import Finetuning as Finetuning
from .experiment import open_task as open_task
from .heads import FinetuneSettings as FinetuneSettings
from .result_file import FinetuneResults as FinetuneResults
from .result_file import model_digest as model_digest
