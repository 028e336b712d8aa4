//! Objects, methods and attributes of the ioctl interface (`rdma/ib_user_ioctl_cmds.h`), as far as they are used here.

/// Object and method.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Method(pub u16, pub u16);

/// Carries a command of [`crate::command`].
pub const INVOKE_WRITE: Method = Method(0, 0);
/// Attributes of a port.
pub const QUERY_PORT: Method = Method(0, 2);
/// Opens a context.
pub const GET_CONTEXT: Method = Method(0, 3);
/// Asks an open one.
pub const QUERY_CONTEXT: Method = Method(0, 4);
/// All entries of the GID table.
pub const QUERY_GID_TABLE: Method = Method(0, 5);
/// One entry of the GID table.
pub const QUERY_GID_ENTRY: Method = Method(0, 6);
/// Registers device memory.
pub const REG_DM_MR: Method = Method(7, 0);
/// Advice about ranges of regions.
pub const ADVISE_MR: Method = Method(7, 2);
/// A region by its handle.
pub const QUERY_MR: Method = Method(7, 3);
/// Registers a dma-buf.
pub const REG_DMABUF_MR: Method = Method(7, 4);
/// An ESP action for flows.
pub const CREATE_ESP: Method = Method(13, 0);
/// Ends an action.
pub const DESTROY_ACTION: Method = Method(13, 1);
/// Changes an ESP action.
pub const MODIFY_ESP: Method = Method(13, 2);
/// Device memory.
pub const ALLOC_DM: Method = Method(14, 0);
/// Ends device memory.
pub const FREE_DM: Method = Method(14, 1);
/// Counters.
pub const CREATE_COUNTERS: Method = Method(15, 0);
/// Ends counters.
pub const DESTROY_COUNTERS: Method = Method(15, 1);
/// Reads counters.
pub const READ_COUNTERS: Method = Method(15, 2);
/// A descriptor for asynchronous events.
pub const ALLOC_ASYNC: Method = Method(16, 0);

/// A driver's own part of a request, in every method.
pub const DRIVER_IN: u16 = 1 << 12;
/// A driver's own part of a response.
pub const DRIVER_OUT: u16 = DRIVER_IN + 1;

/// Attributes of [`INVOKE_WRITE`].
pub const CORE_IN: u16 = 0;
/// See [`CORE_IN`].
pub const CORE_OUT: u16 = 1;
/// See [`CORE_IN`].
pub const WRITE_CMD: u16 = 2;
