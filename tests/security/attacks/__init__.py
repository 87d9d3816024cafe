"""Every attack of the battery, in the order in which it runs: one module a group."""

from collections.abc import Sequence

from security.attacks.base import Attack, Seen
from security.attacks.host import ATTACKS as HOST
from security.attacks.kernel import ATTACKS as KERNEL
from security.attacks.kernel_calls import ATTACKS as KERNEL_CALLS
from security.attacks.memory import ATTACKS as MEMORY
from security.attacks.network import ATTACKS as NETWORK
from security.attacks.protocol import ATTACKS as PROTOCOL
from security.attacks.resources import ATTACKS as RESOURCES

ALL: Sequence[Attack] = (*HOST, *NETWORK, *KERNEL, *KERNEL_CALLS, *MEMORY, *RESOURCES, *PROTOCOL)

__all__ = ["ALL", "Attack", "Seen"]
