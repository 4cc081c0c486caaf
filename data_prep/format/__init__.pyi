from .collocation_list import Collocations as Collocations
from .reader import Dataset as Dataset
from .shard_format import Manifest as Manifest
from .shard_format import ShardInfo as ShardInfo
from .shard_format import SourceInfo as SourceInfo
from .shard_format import TokenizerInfo as TokenizerInfo
from .shard_format import tokenizer_digest as tokenizer_digest
from .token_frequencies import entropy as entropy
