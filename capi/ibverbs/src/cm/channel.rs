//! Event channels.

use std::sync::Arc;

use ironverbs::raw::cm::EventChannel;

use super::objects::ChannelView;
use crate::abi::*;
use crate::fail::{self, Outcome};
use crate::host::host;
use crate::pool::Object;

/// rdma_create_event_channel(3): NULL with ENODEV where there is no device.
pub(crate) extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    fail::object("rdma_create_event_channel", || Ok(create()?.0))
}

/// A channel and its C structure.
pub(super) fn create() -> Outcome<(*mut rdma_event_channel, Arc<EventChannel>)> {
    let channel = EventChannel::new(host()?)?;
    let fd = channel.fd();
    let view = ChannelView(channel.clone());
    let object = rdma_event_channel::pool().insert(view, |object, _| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(rdma_event_channel { fd }) };
    })?;
    Ok((object.as_ptr(), channel))
}

/// rdma_destroy_event_channel(3). Its descriptor is closed with the last id that uses it.
///
/// # Safety
/// As for [`super::objects::find`].
pub(crate) unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the caller's promise.
    fail::silent("rdma_destroy_event_channel", || unsafe { destroy(channel) });
}

/// # Safety
/// As for [`super::objects::find`].
pub(super) unsafe fn destroy(channel: *mut rdma_event_channel) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let number = unsafe { rdma_event_channel::pool().find(channel)? }.number();
    rdma_event_channel::pool().remove(number);
    Ok(())
}
