from .collocation_list import Collocations as Collocations
from .collocation_list import SpanHashes as SpanHashes
from .manifest import Manifest as Manifest
from .manifest import ShardInfo as ShardInfo
from .manifest import SourceInfo as SourceInfo
from .manifest import TokenizerInfo as TokenizerInfo
from .reader import Dataset as Dataset
from .shard_writer import ShardWriter as ShardWriter
