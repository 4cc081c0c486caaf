"""The format of shards and their indexes: names, dtypes and checks (docs/data-format.md is the full account).

Version 1 is for text. Version 2 is for pairs of texts: one bit more for each token, and its place in the index.

DATASET/manifest.json                     written last; a folder without it is not a data set
DATASET/tokenizer/                        the tokenizer that made the ids
DATASET/shards/{task:05d}-{shard:05d}.tar    WebDataset samples, each a block of whole documents
DATASET/shards/{task:05d}-{shard:05d}.index  block table and document lengths of that tar
"""

import json
import mmap

import numpy as np
import xxhash

FORMAT = "maskwright-blocks"
FORMAT_VERSION = 1
TARGETS_VERSION = 2  # data sets of pairs, which say for each token whether it is a target
INDEX_MAGIC = b"MWBLOCKS"
MAX_IDS_BYTES = 64 << 20  # of one block; parsed, JSON takes many times its size

INDEX_HEADER = np.dtype(
    [("magic", "S8"), ("version", "<u4"), ("token_bytes", "<u4")]
    + [(name, "<u8") for name in ("blocks", "documents", "tokens")]
)
# Offsets are from the start of the tar to the first array element, past the tar and .npy headers; a checksum is
# xxh3_64 of the array's bytes alone (of ids: of the JSON). An offset is 0 where the block has no such member.
BLOCK_RECORD = np.dtype(
    [("task", "<u4"), ("number", "<u4"), ("documents", "<u8"), ("tokens", "<u8"), ("first_document", "<u8")]
    + [(f"{member}_offset", "<u8") for member in ("tokens", "ends", "words")]
    + [(f"{member}_xxh3", "<u8") for member in ("tokens", "ends", "words")]
    + [("ids_offset", "<u8"), ("ids_bytes", "<u8"), ("ids_xxh3", "<u8")]
)
RECORDS = {
    FORMAT_VERSION: BLOCK_RECORD,
    TARGETS_VERSION: np.dtype([*BLOCK_RECORD.descr, ("targets_offset", "<u8"), ("targets_xxh3", "<u8")]),
}
"""The record of a block in the index, by format version."""

ENDS_DTYPE = np.dtype("<u4")


def shard_name(task: int, shard: int) -> str:
    return f"{task:05d}-{shard:05d}.tar"


def index_name(shard: str) -> str:
    return shard.removesuffix(".tar") + ".index"


def block_key(task: int, number: int) -> str:
    """WebDataset key of a block; without a dot, since readers split the member name at the first one."""
    return f"{task:05d}_{number:09d}"


def token_dtype(vocab_size: int) -> np.dtype:
    """The little-endian type that holds every id below `vocab_size`: uint16 where it fits, else uint32."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def xxh3(array: np.ndarray | bytes | memoryview) -> int:
    """xxh3_64 of bytes, or of a contiguous array's bytes."""
    return xxhash.xxh3_64_intdigest(array.data if isinstance(array, np.ndarray) else array)


def read_index(data: bytes | mmap.mmap) -> tuple[np.void, np.ndarray, np.ndarray]:
    """Header, block table [blocks] and document lengths uint32 [documents] of an index, as views of `data`.

    Raises ValueError with the reason if it is not an index.
    """
    if len(data) < INDEX_HEADER.itemsize:
        raise ValueError(f"it has {len(data)} bytes, less than its header")
    header = np.frombuffer(data, INDEX_HEADER, 1)[0]
    if header["magic"] != INDEX_MAGIC or header["version"] not in RECORDS:
        raise ValueError(f"its header is not of index version {FORMAT_VERSION} or {TARGETS_VERSION}")
    blocks, documents = int(header["blocks"]), int(header["documents"])
    record = RECORDS[int(header["version"])]
    lengths_offset = INDEX_HEADER.itemsize + blocks * record.itemsize
    if len(data) != lengths_offset + 4 * documents:
        raise ValueError(f"it has {len(data)} bytes where {blocks} blocks and {documents} documents are announced")
    table = np.frombuffer(data, record, blocks, INDEX_HEADER.itemsize)
    return header, table, np.frombuffer(data, "<u4", documents, lengths_offset)


def check_index(header: np.void, table: np.ndarray, lengths: np.ndarray, token_bytes: int, tar_bytes: int) -> None:
    """Raise ValueError unless an index is consistent and points into a tar of `tar_bytes`.

    `table` [blocks] of RECORDS, `lengths` uint32 [documents]. After this check, the tar's arrays can be read without
    any other.
    """
    if header["token_bytes"] != token_bytes:
        raise ValueError(f"its tokens have {header['token_bytes']} bytes, the manifest's {token_bytes}")
    for name in ("documents", "tokens", *(name for name in table.dtype.names or () if name.endswith("_offset"))):
        if (largest := int(table[name].max(initial=0))) > tar_bytes:
            raise ValueError(f"a block's {name} is {largest}, more than the {tar_bytes} bytes of the tar")
    if (largest := int(table["ids_bytes"].max(initial=0))) > min(MAX_IDS_BYTES, tar_bytes):
        raise ValueError(f"a block's ids_bytes is {largest}, more than {MAX_IDS_BYTES} or than the tar")
    documents, tokens = table["documents"].astype(np.int64), table["tokens"].astype(np.int64)
    first = np.cumsum(documents) - documents
    if not documents.all() or not np.array_equal(first, table["first_document"]) or documents.sum() != len(lengths):
        raise ValueError("its blocks do not divide its documents")
    sums = np.add.reduceat(lengths, first, dtype=np.int64) if len(lengths) else tokens
    if not lengths.all() or not np.array_equal(sums, tokens) or tokens.sum() != header["tokens"]:
        raise ValueError("its document lengths do not add up to its tokens, or one is 0")
    keys = block_keys(table)
    if (keys[1:] <= keys[:-1]).any():
        raise ValueError("its blocks are not in the order of their numbers")
    if not (table["tokens_offset"].all() and table["ends_offset"].all()):
        raise ValueError("a block has no tokens or no ends")
    if "targets" in bit_members(table.dtype) and not table["targets_offset"].all():
        raise ValueError("a block has no targets")
    for name, size in member_bytes(table, token_bytes).items():
        offset = table[f"{name}_offset"].astype(np.int64)
        if ((offset > 0) & (offset + size > tar_bytes)).any():
            raise ValueError(f"a block's {name} would lie beyond the end of the tar")


def member_bytes(table: np.ndarray, token_bytes: int) -> dict[str, np.ndarray]:
    """Bytes that each member takes in each block, if the block has it: int64 [blocks] by name."""
    tokens, documents = table["tokens"].astype(np.int64), table["documents"].astype(np.int64)
    sizes = {"tokens": token_bytes * tokens, "ends": 4 * documents, "ids": table["ids_bytes"].astype(np.int64)}
    return sizes | dict.fromkeys(bit_members(table.dtype), -(-tokens // 8))


def bit_members(record: np.dtype) -> list[str]:
    """The members with one bit per token that a block may have, by the type of its record in the index."""
    return [name for name in ("words", "targets") if f"{name}_offset" in (record.names or ())]


def block_keys(table: np.ndarray) -> np.ndarray:
    """Task and block number of each block as one number, uint64 [blocks]."""
    return table["task"].astype(np.uint64) << np.uint64(32) | table["number"].astype(np.uint64)


def document_ids(data: bytes, documents: int) -> list[str | int]:
    """The list in an `ids` member; raises ValueError unless it is one of `documents` strings and integers."""
    try:
        ids = json.loads(data)
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    except json.JSONDecodeError:
        raise ValueError("they are not JSON") from None
    if type(ids) is not list or len(ids) != documents or not {type(id) for id in ids} <= {str, int}:
        raise ValueError(f"they are not a list of {documents} strings and integers")
    return ids
