"""The run folder: its file names, status, lock and journal, the phases of a run, and requests to stop.

`RunFolder` names all files and holds the lock. `Journal` appends to the journal; `JournalReader` and `JournalTable`
read it. `StartPhase` and `PhaseMarker` say what a run does. `StopRequest` turns SIGTERM, or the file STOP, into a
request to the step loop (`pretrain.loop`), which then saves a checkpoint and stops. `EXIT_CODES` gives the exit code of
a state.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
