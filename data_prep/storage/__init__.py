"""Files and folders on disk: compressed files, caches of remote files and of models of the Hub, kinds of folders.

`Cache` keeps files, and parts of files, behind URLs. `decompressed_chunks` reads .gz and .zst files.
`load_text`, `read_lines` and `read_json_lines` read text files of users; `json_line_files` lists the files of a folder.
`fetch_from_hub` and `cached_folder` find models and tokenizers that are named as `hub:OWNER/NAME`.
`require_run` and `not_a` make the message when a command gets a folder of another kind.
"""

from data_prep.storage.cache import Cache
from data_prep.storage.compressed import MAGIC, DamagedStream, decompressed_chunks
from data_prep.storage.folder_kinds import OTHER_FILES, folder_kind, is_run, not_a, require_run
from data_prep.storage.hub_models import TOKENIZER_FILES, cached_folder, fetch_from_hub, hub_parts, is_hub_name
from data_prep.storage.text_files import json_line_files, load_text, read_json_lines, read_lines, require_file, spread
