from .prompt_masks import MASK as MASK
from .prompt_masks import require_mask as require_mask
from .text_writer import GenerationRequest as GenerationRequest
from .text_writer import Writer as Writer
