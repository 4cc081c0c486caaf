"""Log checkpoints as MLflow models during a run, in a separate process that training does not wait for."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from data_prep.common.errors import UserError
from data_prep.common.files import no_link, text_or_none
from data_prep.common.processes import die_with_parent, module_command
from pretrain.config import TrackConfig
from pretrain.run import RunFolder
from pretrain.tracking.tracking_target import Target

_MODULE = "pretrain.tracking.model_logger"


class ModelLogger:
    """Starts one pass at a time over the checkpoints that MLflow lacks; each exports in host memory, never on a GPU.

    Args:
        last_seconds: how long `close` waits. command: starts a pass, with the arguments of `main`.
    """

    LAST_SECONDS = 300.0
    """How long the end of a run waits for its last models."""

    def __init__(
        self,
        folder: RunFolder,
        track: TrackConfig,
        last_seconds: float = LAST_SECONDS,
        command: Sequence[str] | None = None,
    ):
        self._folder, self._which = folder, track.models
        self._last_seconds, self._command = last_seconds, command or module_command(_MODULE)
        target = Target.of_training(track.uri, track.experiment)  # for the environment: the run folder may be foreign
        self._target = {"MLFLOW_TRACKING_URI": target.uri, "MLFLOW_EXPERIMENT_NAME": target.experiment}
        self._pass: subprocess.Popen[bytes] | None = None

    def committed(self) -> None:
        """There is a new checkpoint: begin a pass, unless one is running, which looks again before it ends."""
        if self._which in ("all", "best") and (self._pass is None or self._pass.poll() is not None):
            self._begin(niceness=10)  # training comes first, as long as it lasts

    def close(self, completed: bool) -> None:
        """Log the last models of a completed run, in a bounded time; otherwise the run's next start does it."""
        deadline, failed = time.monotonic() + self._last_seconds, False
        if completed and self._which != "none":
            try:
                if self._pass:
                    self._pass.wait(self._last_seconds)
                self._begin(niceness=0)
                failed = self._pass is None or self._pass.wait(max(0.0, deadline - time.monotonic())) != 0
            except subprocess.TimeoutExpired:
                failed = True
        if self._pass:
            self._pass.kill()
            self._pass.wait()
        if failed:
            hint = f"maskwright track models {self._folder.path} --which {self._which}"
            lines = (text_or_none(self._folder.models_log) or "it took too long").splitlines()
            reason = lines[-1].removeprefix("error: ")
            print(f"warning: MLflow has not got every model ({reason}): {hint}", file=sys.stderr, flush=True)

    def _begin(self, niceness: int) -> None:
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"} | self._target
        try:
            with open(self._folder.models_log, "ab", opener=no_link) as log:
                self._pass = subprocess.Popen(
                    [*self._command, str(self._folder.path), self._which, str(niceness)],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        except OSError as error:  # no room for the file, or for the process
            print(f"warning: no model is logged in MLflow now: {error}", file=sys.stderr, flush=True)


def main() -> int:
    """`python -m pretrain.tracking.model_logger RUN WHICH NICENESS`: log all models, or end with the parent process."""
    die_with_parent()
    from pretrain.tracking.logged_models import log_models  # not in training, which has no use for transformers

    os.nice(int(sys.argv[3]))
    try:
        while names := log_models(Path(sys.argv[1]), sys.argv[2], trust_folder=True):
            print(f"logged {', '.join(names)}", flush=True)
    except UserError as error:
        print(f"error: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
