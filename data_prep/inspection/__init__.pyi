from .show_document import document as document
from .summarize import summary as summary
from .text_survey import TextSurvey as TextSurvey
from .text_survey import survey as survey
from .verification import verify_data_set as verify_data_set
from .weight_lists import TokenWeights as TokenWeights
