from .bounded_cache import CACHE as CACHE
from .bounded_cache import CACHE_BYTES as CACHE_BYTES
from .bounded_cache import Cache as Cache
