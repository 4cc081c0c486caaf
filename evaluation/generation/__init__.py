"""Generate text: mask-predict, diffusion, left to right.

A `Writer` opens a model and writes the texts of a `GenerationRequest`.
"""

from evaluation.generation.text_writer import GenerationRequest, Writer
