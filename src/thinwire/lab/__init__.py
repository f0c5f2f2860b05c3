"""An emulated network on one Linux machine: workers in network namespaces, joined by shaped links."""

from thinwire.lab.counters import LinkCounters, interface_bytes
from thinwire.lab.lab import Lab, LabUnavailable
from thinwire.lab.shape import LinkShape

__all__ = ["Lab", "LabUnavailable", "LinkCounters", "LinkShape", "interface_bytes"]
