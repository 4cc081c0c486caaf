"""Where a command sends what it measured: options before MLflow's environment variables, and those before the usual."""

from data_prep.errors import UserError


def mlflow_address(uri: str | None, experiment: str | None) -> tuple[str, str]:
    """Address and experiment. Raises UserError for a password in the option."""
    from pretrain.config.run import TrackConfig
    from pretrain.tracking.target import absolute, resolve_target

    refuse_password(uri)
    usual = TrackConfig()
    found = resolve_target(usual.uri, usual.experiment)
    return absolute(uri) if uri else found[0], experiment or found[1]


def refuse_password(uri: str | None) -> None:
    """Raise UserError if the address that an option gives holds one."""
    from pretrain.redact import redact

    if uri and redact(uri) != uri:
        raise UserError(
            "passwords do not belong on a command line, which all can read: set MLFLOW_TRACKING_URI instead"
        )
