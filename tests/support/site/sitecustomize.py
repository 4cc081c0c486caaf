"""Python imports this at its start where PYTHONPATH has this folder; see tests.support.fault_injection."""

from tests.support.fault_injection import install

install()
