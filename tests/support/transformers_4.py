"""transformers 4 in a separate folder, in addition to the installed version 5."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forked import ROOT

PACKAGES = ("transformers==4.57.1", "tokenizers==0.22.2", "huggingface_hub==0.36.2")
_KEPT = ROOT / ".pytest_cache" / "-".join(["packages", *PACKAGES, "python{}.{}".format(*sys.version_info)])


def transformers_4() -> Path:
    """The folder of the packages, which is kept; to put before the others on PYTHONPATH.

    Skips where pip cannot install them; MASKWRIGHT_REQUIRE_TRANSFORMERS_4=1 makes that a failure.
    """
    done = _KEPT / "installed"
    if not done.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--no-deps", "--no-compile",
                   "--only-binary=:all:", "--disable-pip-version-check", "--retries=1", "--timeout=10", "--upgrade",
                   f"--target={_KEPT}", *PACKAGES]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if result.returncode:
            reason = f"pip cannot install {PACKAGES[0]}: {result.stderr.strip().splitlines()[-1]}"
            if os.environ.get("MASKWRIGHT_REQUIRE_TRANSFORMERS_4") == "1":
                pytest.fail(f"{reason}, and MASKWRIGHT_REQUIRE_TRANSFORMERS_4=1 says that it must")
            pytest.skip(reason)
        done.touch()
    return _KEPT
