"""Shards to a trained model.

`train` is the entry of a rank. `setup` opens the run, `trial` chooses kernels and makes a trial step, and the room
`loop` steps. A batch passes the rooms `data`, `masking`, `model` with `kernels`, `engine` and `optim`. `run` records
the results, `tracking` sends them to MLflow, and `reporting` shows them. `checkpoint` stores the state, `resuming`
continues from it, and `export` writes a Hugging Face model. `guards` watches the run. `config` and `planning` check it
before it starts, and `distributed` is the communication between ranks.
"""
