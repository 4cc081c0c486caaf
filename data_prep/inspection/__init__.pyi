from .collocation_search import CollocationCounts as CollocationCounts
from .collocation_search import find_collocations as find_collocations
from .show_document import document as document
from .summarize import summary as summary
from .verification import verify as verify
from .weight_lists import TokenWeights as TokenWeights
