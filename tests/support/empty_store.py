"""An empty MLflow database to copy: creating one takes seconds."""

import atexit
import functools
import shutil
import tempfile
from pathlib import Path


def copy_empty_store(path: Path) -> Path:
    """Put an empty database at `path`."""
    return Path(shutil.copy(_empty_store(), path))


@functools.cache
def _empty_store() -> Path:
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "mlflow.db"
    SqlAlchemyStore(f"sqlite:///{path}", f"{folder.name}/artifacts").engine.dispose()
    return path
