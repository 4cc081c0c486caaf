from .contamination import Grams as Grams
from .hashing import mix as mix
from .hashing import powers as powers
from .key_passes import key_writer as key_writer
from .key_passes import read_drops as read_drops
from .key_passes import resolve_repeats as resolve_repeats
from .text_filters import Cleaning as Cleaning
from .word_counts import count_words as count_words
