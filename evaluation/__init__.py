"""Evaluate trained models.

The rooms: `likelihood` for held-out loss and minimal pairs, `finetuning`, `layers` for layer analysis, `generation` of
text, and `study` for the comparison of maskings. `text_files` reads the text files of users.
"""
