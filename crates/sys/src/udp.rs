//! UDP sockets for RoCEv2: batches, GSO, GRO, and the path of every packet.
