//! Interfaces, their addresses and routes.
