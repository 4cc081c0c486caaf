"""The format of a data set: what preparation writes and training reads.

`ShardWriter` writes WebDataset tars with their indexes, `Manifest.write` makes a data set of them, and `Dataset` reads
its documents from a folder or a URL and checks every byte. docs/data-format.md is the specification.
"""

from data_prep.format.manifest import Manifest, ShardInfo, SourceInfo, TokenizerInfo
from data_prep.format.reader import Dataset
from data_prep.format.shard_check import data_set_problems
from data_prep.format.shard_writer import ShardWriter
from data_prep.format.weight_list import WeightList
