"""Fine-tune exported models on sentences, words, questions and cloze repair, with several seeds.

A task reads its files, encodes them and scores predictions. `learner` trains one model, `experiment` opens the task and
runs all seeds, and `result_file` stores the results.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
