from .collocation_search import CollocationCounts as CollocationCounts
from .collocation_search import find_collocations as find_collocations
from .show_document import document as document
from .show_document import open_vocabulary as open_vocabulary
from .show_document import text_of as text_of
from .summarize import SEQ_LENS as SEQ_LENS
from .summarize import summary as summary
from .verification import verify as verify
