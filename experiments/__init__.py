"""Experiments on masked language models. They use the packages; the packages do not use them."""
