"""Fine-tune exported models on sentences, words and cloze repair, with several seeds.

`Finetuning` trains and saves the models of one task with `FinetuneSettings`. `FinetuneResults` stores the scores by
seed and resumes from them. `open_task` reads and checks the examples of a task. `SuiteRun` fine-tunes the models of
`entrants_of` on the tasks of `read_suite`.
"""

from evaluation.finetuning.experiment import Finetuning, open_task
from evaluation.finetuning.heads import FinetuneSettings
from evaluation.finetuning.result_file import FinetuneResults
from evaluation.finetuning.suite import Entrant, Suite, SuiteRun, entrants_of, read_suite
