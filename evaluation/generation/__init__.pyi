from .text_writer import GenerationRequest as GenerationRequest
from .text_writer import Writer as Writer
