from .cache import Cache as Cache
from .compressed import MAGIC as MAGIC
from .compressed import DamagedStream as DamagedStream
from .compressed import decompressed as decompressed
from .compressed import decompressed_chunks as decompressed_chunks
from .folder_kinds import is_run as is_run
from .folder_kinds import not_a as not_a
from .folder_kinds import require_run as require_run
