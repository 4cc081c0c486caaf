from .masked_tokens import MaskedTokens as MaskedTokens
from .masked_tokens import Replacement as Replacement
from .rows import IGNORED as IGNORED
from .rows import WORD_START as WORD_START
from .rows import Masked as Masked
from .rows import Objective as Objective
from .rows import Rows as Rows
from .rows import Vocabulary as Vocabulary
