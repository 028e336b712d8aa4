//! Who reads a device's frames: a thread for each device that has flows.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ironverbs_sys::errno;
use ironverbs_sys::event::{self, EventFd, EventMode};
use ironverbs_sys::packet::{Checksum, Frame, FrameReceiver, Frames};
use parking_lot::Mutex;

use super::checksum;
use super::flow::{Arrived, Rule, Rules};
use super::headers::Headers;
use super::{RawQp, Wq};
use crate::{Device, Error};

/// How often it is looked whether the device is still there.
const LOOK: Duration = Duration::from_millis(200);

/// The flows of a device, and who asks them.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    rules: Arc<Rules>,
    reader: Mutex<Option<Reader>>,
    qps: Mutex<Vec<Weak<RawQp>>>,
    wqs: Mutex<Vec<Weak<Wq>>>,
}

#[derive(Debug)]
struct Reader {
    stop: Arc<EventFd>,
    thread: JoinHandle<()>,
}

impl Steering {
    /// Takes note of a queue pair, which flushes when the device goes.
    pub(super) fn note(&self, qp: &Arc<RawQp>) {
        let mut qps = self.qps.lock();
        qps.retain(|qp| qp.strong_count() > 0);
        qps.push(Arc::downgrade(qp));
    }

    /// The same of a work queue.
    pub(super) fn note_wq(&self, wq: &Arc<Wq>) {
        let mut wqs = self.wqs.lock();
        wqs.retain(|wq| wq.strong_count() > 0);
        wqs.push(Arc::downgrade(wq));
    }

    /// The device is gone.
    pub(crate) fn flush(&self) {
        let qps: Vec<_> = self.qps.lock().iter().filter_map(Weak::upgrade).collect();
        qps.iter().for_each(|qp| qp.follow_device());
        let wqs: Vec<_> = self.wqs.lock().iter().filter_map(Weak::upgrade).collect();
        wqs.iter().for_each(|wq| wq.follow_device());
    }

    pub(crate) fn add(&self, device: &Arc<Device>, rule: &Arc<Rule>) -> Result<(), Error> {
        let mut reader = self.reader.lock();
        if reader.is_none() {
            *reader = Some(Reader::start(device, &self.rules)?);
        }
        self.rules.add(rule);
        Ok(())
    }

    pub(crate) fn remove(&self, rule: &Arc<Rule>) {
        let mut reader = self.reader.lock();
        if self.rules.remove(rule) == 0
            && let Some(Reader { stop, thread }) = reader.take()
        {
            let _ = stop.signal();
            let _ = thread.join();
        }
    }
}

impl Reader {
    fn start(device: &Arc<Device>, rules: &Arc<Rules>) -> Result<Reader, Error> {
        let receiver =
            FrameReceiver::open(device.ifindex(), device.is_loopback()).map_err(refused)?;
        let stop = Arc::new(EventFd::new(EventMode::Counter, true)?);
        let (stopped, rules, device) = (stop.clone(), rules.clone(), Arc::downgrade(device));
        let thread = event::spawn_thread("ironverbs-raw", move || {
            let mut frames = Frames::default();
            let mut scratch = Vec::new();
            // It ends with an error when the interface is gone for good.
            while let Ok(true) = receiver.wait(&stopped, LOOK) {
                let present = device.upgrade().is_some_and(|device| device.is_present());
                if !present {
                    break;
                }
                // Until nothing is left: the thread that wakes for each frame is late for the next.
                while let Ok(1..) = received(receiver.receive(&mut frames)) {
                    frames.each(|frame| take(&rules, frame, &mut scratch));
                }
            }
        })?;
        Ok(Reader { stop, thread })
    }
}

/// Why there is no packet socket.
pub(super) fn refused(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(errno::EPERM) => Error::Denied { what: "raw packets need CAP_NET_RAW" },
        _ => error.into(),
    }
}

/// An interface that goes down says so once; what comes when it is up again comes.
fn received(count: io::Result<usize>) -> io::Result<usize> {
    match count {
        Err(error) if error.kind() == io::ErrorKind::NetworkDown => Ok(0),
        other => other,
    }
}

fn take(rules: &Rules, frame: Frame<'_>, scratch: &mut Vec<u8>) {
    let own = frame.leaves;
    if frame.segment > 0 {
        let steer = |part: &mut [u8]| rules.steer(&Arrived { frame: part, checked: true, own });
        if checksum::segments(frame.bytes, frame.segment, scratch, steer) {
            return;
        }
    }
    let mut known = frame.checksum == Checksum::Right;
    if let Checksum::Missing { start, at } = frame.checksum {
        checksum::complete(frame.bytes, start, at);
        known = true;
    }
    let headers = Headers::of(frame.bytes, 0);
    let checked = headers.is_some_and(|headers| checksum::right(frame.bytes, &headers, known));
    rules.steer(&Arrived { frame: frame.bytes, checked, own });
}
