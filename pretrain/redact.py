"""Secrets in addresses, which must not reach logs, configs or MLflow."""

import re


def redact(text: str) -> str:
    """`text` without what stands for a secret in addresses: `user:password@`, `?password=...`, `&token=...`."""
    text = re.sub(r"(?<!sqlite)://\S*@", "://***@", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:pass|pwd|token|secret|key)[^=&\s]*=)[^&\s]+", r"\1***", text)
