from .experiment import Finetuning as Finetuning
from .experiment import open_task as open_task
from .result_file import FinetuneResults as FinetuneResults
from .result_file import send_report as send_report
from .settings import FinetuneSettings as FinetuneSettings
