"""Continue a run: choose the checkpoint, check that it fits, and restore the state of the stream and the guards.

`find_start` chooses the checkpoint on all ranks; `expected_start` does so before any process starts. `check_fits` says
whether a run may resume from a checkpoint. `ResumeState` is the state apart from weights and optimizer. `roll_back`
goes back to a checkpoint before a loss spike. `load_to_start` loads a config, and downloads the model of model.init.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
