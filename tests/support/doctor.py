"""Findings of `maskwright doctor`."""

from launchers.local import Finding, Status


def status(finding: Finding) -> Status:
    """The status of a finding, which must have advice if something is wrong, and only then."""
    assert (finding.status in ("warn", "fail")) == bool(finding.advice), (
        "what is wrong needs advice, what is not does not"
    )
    return finding.status
