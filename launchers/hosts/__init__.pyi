from .host_checks import check_hosts as check_hosts
from .host_checks import read_hostfile as read_hostfile
from .ssh import HostsJob as HostsJob
from .ssh import ssh_command as ssh_command
from .start_hosts import start_over_ssh as start_over_ssh
