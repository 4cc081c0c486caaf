"""`maskwright tokenizer` and `maskwright prep`."""

import typer

tokenizer_app = typer.Typer(help="Train a tokenizer.", no_args_is_help=True)
prep_app = typer.Typer(help="Turn raw text into verified, pre-tokenized shards.", no_args_is_help=True)
