//! Unix sockets: abstract names, credentials, passing of descriptors.
