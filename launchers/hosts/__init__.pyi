from .host_checks import check_hosts as check_hosts
from .host_checks import read_hostfile as read_hostfile
from .ssh import HostsJob as HostsJob
from .start_hosts import train_on_hosts as train_on_hosts
