"""Check an index against itself, and the ids of a block."""

import json

import numpy as np

MAX_IDS_BYTES = 64 << 20  # of one block; parsed, JSON takes many times its size


def check_index(header: np.void, table: np.ndarray, lengths: np.ndarray, token_bytes: int, tar_bytes: int) -> None:
    """Raise ValueError unless an index agrees with itself and points into a tar of `tar_bytes`.

    `table` [blocks] of BLOCK_RECORD, `lengths` uint32 [documents]. After it, the tar's arrays can be read blindly.
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
        raise ValueError("its blocks do not share out its documents")
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
    found = {"tokens": token_bytes * tokens, "ends": 4 * documents, "ids": table["ids_bytes"].astype(np.int64)}
    return found | dict.fromkeys(bit_members(table.dtype), -(-tokens // 8))


def bit_members(record: np.dtype) -> list[str]:
    """The members with a bit for each token that a block may have, by the type of its record in the index."""
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
