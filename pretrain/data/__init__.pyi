from .batch import Batch as Batch
from .batch_view import BatchDocument as BatchDocument
from .batch_view import Kind as Kind
from .checksum import batch_checksum as batch_checksum
from .loader import Loader as Loader
from .mixture import MixturePosition as MixturePosition
from .training_sources import Sources as Sources
from .training_sources import open_sources as open_sources
