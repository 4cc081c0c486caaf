"""Shards to a trained model.

`train` is the entry of a rank and `loop` its step loop. The rooms in the order that a batch passes them: `data`,
`objectives`, `masking`, `model` with `kernels`, `engine`, `optim`; then `run` and `tracking` record the results, and
`checkpoint` and `export` store them.
"""
