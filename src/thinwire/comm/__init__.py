"""How payloads cross the network: routines over process groups, in an order that all ranks share."""

from thinwire.comm.agreement import agree
from thinwire.comm.groups import like, timeout_of
from thinwire.comm.lane import Lane
from thinwire.comm.routines import add_rows, allgather, allreduce, alltoall

__all__ = ["Lane", "add_rows", "agree", "allgather", "allreduce", "alltoall", "like", "timeout_of"]
