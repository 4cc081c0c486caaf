"""Held-out loss, pseudo-log-likelihoods of sentences, and minimal pairs such as BLiMP's.

`evaluate` answers an `EvaluationRequest`, and `send_evaluation` sends the results to MLflow. `check_pairs` checks a
file of minimal pairs before a model exists.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
