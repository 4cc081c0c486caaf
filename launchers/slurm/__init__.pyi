from .batch_script import render as render
from .client import QueuedJob as QueuedJob
from .client import cancel_waiting as cancel_waiting
from .client import check_available as check_available
from .client import jobs_of as jobs_of
from .client import max_array_size as max_array_size
from .client import own_jobs as own_jobs
from .client import submit as submit
