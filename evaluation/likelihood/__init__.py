"""Held-out loss, pseudo-log-likelihoods of sentences, and minimal pairs such as BLiMP's.

`evaluate` answers an `EvaluationRequest`, and `send_evaluation` sends the results to MLflow. `check_pairs` checks a
file of minimal pairs before a model exists.
"""

from evaluation.likelihood.evaluate_models import EvaluationRequest, check_pairs, evaluate, send_evaluation
