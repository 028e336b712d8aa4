//! The device as it is, for what shows it.

pub(crate) use ironverbs::raw::registry::{JoinOptions, Observer, users};
pub(crate) use ironverbs::raw::{
    Config, Context, Counters, DeviceAttr, Error, GidKind, Host, LinkLayer, PortAttr, PortState,
    ProcessStatus, QpState, QpStatus, QpType, ServiceStatus, WaitStatus, config,
};

/// As sysfs spells it.
pub(crate) fn kind_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::Ib => "IB",
        GidKind::RoceV1 => "IB/RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
    }
}
