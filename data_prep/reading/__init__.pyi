from .folder_kinds import require_run as require_run
from .typed_values import typed as typed
from .untrusted_files import open_regular as open_regular
from .untrusted_files import parse_json as parse_json
from .untrusted_files import read_bytes as read_bytes
from .untrusted_files import read_json as read_json
from .untrusted_files import shown_path as shown_path
from .untrusted_files import unusable as unusable
