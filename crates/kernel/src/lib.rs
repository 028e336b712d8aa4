//! RDMA devices of the kernel: finding them ([`discover`]), which drivers are installed for them ([`drivers`],
//! [`pattern`]), commands to them as bytes ([`command`], [`method`]), what they tell ([`event`]), and what
//! is told of them to who manages them ([`management`]).
//!
//! Numbers and layouts are those of the kernel's public headers (`rdma/ib_user_verbs.h`,
//! `rdma/ib_user_ioctl_cmds.h`). Whoever issues the commands is responsible for the memory that they name.
#![forbid(unsafe_code)]

pub mod cm;
pub mod command;
pub mod discover;
pub mod drivers;
pub mod event;
pub mod management;
pub mod method;
pub mod pattern;
pub mod queue;
pub mod rxe;
pub mod siw;
