"""Export of a checkpoint as a Hugging Face folder with model card, and models by the names that users type.

`export_run` writes the folder; `pretrain.model` maps the weights to transformers' names. `model_folder` finds the
folder of a model or a run, and `load_model`, `load_language_model` and `load_tokenizer` load from it. `check_model` and
`check_vocabulary` refuse unsuitable models early. `merge_models` averages exports with `merge_weights`; `merge_parts`
finds them. `revision_of` gives the files of a published model with its model card, with the figures that `figures_in`
reads, and `HubRepository` uploads them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
