"""How payloads cross the network: routines over process groups, in an order that all ranks share."""

from thinwire.comm.agreement import agree
from thinwire.comm.groups import like, timeout_of
from thinwire.comm.lane import Lane
from thinwire.comm.routines import allgather, allreduce, alltoall, reduce_scatter

__all__ = ["Lane", "agree", "allgather", "allreduce", "alltoall", "like", "reduce_scatter", "timeout_of"]
