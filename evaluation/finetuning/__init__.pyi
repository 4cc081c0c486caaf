from .experiment import open_report as open_report
from .experiment import prepare as prepare
from .experiment import run_seed as run_seed
from .experiment import save as save
from .result_file import FinetuneResults as FinetuneResults
from .seed_tracking import send_report as send_report
from .settings import FinetuneSettings as FinetuneSettings
from .tasks import open_task as open_task
