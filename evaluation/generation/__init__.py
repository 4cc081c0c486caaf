"""Generate text: mask-predict, diffusion, left to right.

A `Writer` opens a model and writes the texts of a `GenerationRequest`. `require_masks` refuses texts without a mask.
"""

from evaluation.generation.text_writer import GenerationRequest, Writer, require_masks
