"""Fine-tuning of exported models: sentences, words, questions and cloze repair, with several seeds.

A task reads its files, makes features of them, and scores predictions; `learner` trains one model; `experiment` does
that for each seed, and `report` holds what came of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
