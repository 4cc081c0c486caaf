"""The run folder: its file names, status, lock and journal, and the phases and the end of a run.

`RunFolder` names all files and holds the lock. `Journal` appends to the journal; `JournalReader` and `JournalTable`
read it. `StartPhase` and `PhaseMarker` say what a run does. `StopRequest` turns SIGTERM into a request to the step
loop, which then saves a checkpoint and stops.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
