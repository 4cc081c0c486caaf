"""An MLflow database without runs: `python -m tests.support.empty_store PATH` makes one, which takes seconds."""

import sys
from pathlib import Path

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore


def main(path: Path) -> None:
    SqlAlchemyStore(f"sqlite:///{path}", str(path.parent / "artifacts"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
