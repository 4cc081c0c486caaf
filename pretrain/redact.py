"""Secrets in addresses, which must not reach logs, configs or MLflow."""

import re


def redact(text: str) -> str:
    """`text` without what stands for a secret in addresses: `user:password@`, `?password=...`, `&token=...`."""
    text = re.sub(r"(?<!sqlite)://\S*@", "://***@", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:pass|pwd|token|secret|key)[^=&\s]*=)[^&\s]+", r"\1***", text)


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable is a secret, by its name or because its value is an address with one."""
    return bool(re.search(r"(?i)pass|pwd|token|secret|key|credential", name)) or redact(value) != value
