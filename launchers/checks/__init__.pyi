from .node_checks import GIB as GIB
from .node_checks import Finding as Finding
from .node_checks import Status as Status
from .node_checks import check_memory as check_memory
from .node_checks import check_node as check_node
from .node_checks import check_room as check_room
from .node_checks import check_writes as check_writes
from .node_checks import judge as judge
