"""Evaluate trained models.

The rooms: `likelihood` for held-out loss and minimal pairs, `finetuning`, `generation` of text, `audit` of a run, and
`study` for the comparison of settings.
"""
