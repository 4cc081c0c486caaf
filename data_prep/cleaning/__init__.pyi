from .contamination import MIN_WORDS as MIN_WORDS
from .contamination import NGRAM_WORDS as NGRAM_WORDS
from .contamination import Grams as Grams
from .contamination import contaminated as contaminated
from .contamination import evaluation_grams as evaluation_grams
from .contamination import evaluation_texts as evaluation_texts
from .text_filters import Cleaning as Cleaning
