from .deduplication import resolved as resolved
from .preparation_notes import encoder_notes as encoder_notes
from .preparation_plan import PreparationSettings as PreparationSettings
from .preparation_plan import check_out as check_out
from .preparation_plan import read_plan as read_plan
from .prepare import Prepared as Prepared
from .prepare import PrepareRequest as PrepareRequest
from .process_pool import Workers as Workers
