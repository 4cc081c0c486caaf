"""Fine-tune exported models on sentences, words, questions and cloze repair, with several seeds.

`Finetuning` trains and saves the models of one task with `FinetuneSettings`. `FinetuneResults` stores the scores by
seed and resumes from them. `open_task` reads and checks the examples of a task.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
