//! The software RDMA device: objects, progress, wire path, host registry.
