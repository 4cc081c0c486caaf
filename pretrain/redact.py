"""Secrets, in addresses and in variables, which must not reach logs, configs, job scripts or MLflow."""

import re


def redact(text: str) -> str:
    """`text` without what stands for a secret in addresses: `user:password@`, `?password=...`, `&signature=...`."""
    text = re.sub(r"(?<!sqlite)://\S*@", "://***@", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:pass|pwd|token|secret|key|sig|cred|auth)[^=&\s]*=)[^&\s]+", r"\1***", text)


def is_secret(name: str, value: str) -> bool:
    """Whether an environment variable holds a secret, by its name (`HF_TOKEN`) or by an address in it."""
    words = r"pass|pwd|token(?!iz)|secret|credential|(?:^|_)(?:api)?keys?(?:_|$)"
    return bool(re.search(words, name, re.IGNORECASE)) or redact(value) != value


def assigned_secret(shell: str) -> str | None:
    """The variable that lines of shell give a secret in plain text; `TOKEN=$(cat ~/.token)` and `TOKEN=$1` do not."""
    for name, value in re.findall(r"""(\w+)=['"]?(?=([^\s'"]*))""", shell):
        if value and not value.startswith(("$", "`")) and is_secret(name, value):
            return str(name)
    return None
