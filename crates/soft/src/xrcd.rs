//! XRC domains: what receiving queue pairs and the shared receive queues they feed have in common (IBA A14).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::errno::EAGAIN;
use ironverbs_transport::verbs::{QpCap, QpType};
use parking_lot::{Mutex, RwLock};

use crate::context::limits;
use crate::object::{self, Identity};
use crate::{Context, Cq, Error, Pd, Qp, QpInit, Srq};

/// A reference to an XRC domain (ibv_open_xrcd(3)). Those that were opened with the same file are of one domain.
#[derive(Debug)]
pub struct Xrcd {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    domain: Arc<Domain>,
    /// What the receiving QPs, which have neither, are given for their protection domain and their CQ.
    pd: Arc<Pd>,
    cq: Arc<Cq>,
}

#[derive(Debug)]
struct Domain {
    file: Option<FileId>,
    srqs: RwLock<BTreeMap<u32, Weak<Srq>>>,
}

/// A device of ours, and a file by its file system and inode.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct FileId {
    device: u32,
    file_system: u64,
    inode: u64,
}

/// The XRC domains of a Host, and the numbers of their SRQs.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    /// Those that a file names, each with the count of its references.
    of_files: Mutex<Vec<(FileId, Arc<Domain>, usize)>>,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    used: BTreeSet<u32>,
    last: u32,
}

impl Numbers {
    /// A number not in use, as long as possible after its last use. 0 is none.
    fn take(&mut self) -> Option<u32> {
        if self.used.len() >= limits::SRQ as usize {
            return None;
        }
        loop {
            self.last = self.last % 0xff_ffff + 1;
            if self.used.insert(self.last) {
                return Some(self.last);
            }
        }
    }
}

impl Domains {
    fn open(
        &self,
        file: Option<FileId>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Domain>, Error> {
        let new = || Arc::new(Domain { file, srqs: RwLock::default() });
        let Some(id) = file else { return Ok(new()) };
        let mut known = self.of_files.lock();
        match known.iter_mut().find(|(other, ..)| *other == id) {
            Some(_) if exclusive => Err(Error::Invalid {
                what: "oflags",
                value: 0,
                why: "O_EXCL was given, and the file has a domain",
            }),
            Some((_, domain, references)) => {
                *references += 1;
                Ok(domain.clone())
            }
            None if create => {
                let domain = new();
                known.push((id, domain.clone(), 1));
                Ok(domain)
            }
            // As the kernel has it.
            None => Err(Error::Io(io::Error::from_raw_os_error(EAGAIN))),
        }
    }

    fn close(&self, domain: &Arc<Domain>) {
        let mut known = self.of_files.lock();
        known.retain_mut(|(_, other, references)| {
            if Arc::ptr_eq(other, domain) {
                *references -= 1;
            }
            *references > 0
        });
    }
}

impl Xrcd {
    pub(crate) fn open(
        context: &Arc<Context>,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>, Error> {
        let device = context.device().ifindex();
        let file = file.map(|fd| identify(fd, device)).transpose()?;
        let cq = context.create_cq(1, None, 0)?;
        let pd = Pd::new(context)?;
        let domain = context.inner().xrc.open(file, create, exclusive)?;
        Ok(Arc::new(Xrcd {
            identity: context.inner().identity("XRC domain"),
            users: AtomicUsize::new(0),
            domain,
            pd,
            cq,
        }))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// Makes an XRC_RECV queue pair in state RESET (ibv_create_qp_ex(3)).
    pub fn create_qp(self: &Arc<Self>) -> Result<Arc<Qp>, Error> {
        self.context().check()?;
        self.identity.check()?;
        let init = QpInit {
            qp_type: QpType::XrcRecv,
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: false,
        };
        Qp::with_domain(&self.pd, &init, Some(self))
    }

    /// Another reference to an XRC_RECV queue pair of the domain (ibv_open_qp(3)): it goes when it has been destroyed
    /// as often as it was made and opened.
    ///
    /// # Errors
    /// Invalid when the domain has no such QP.
    pub fn open_qp(&self, qpn: u32) -> Result<Arc<Qp>, Error> {
        let host = self.context().inner();
        self.context().check()?;
        self.identity.check()?;
        let found = host.qps.read().get(qpn);
        let ours = |qp: &Arc<Qp>| qp.xrcd().is_some_and(|xrcd| xrcd.is_same_domain(self));
        found.filter(ours).filter(|qp| qp.open_again()).ok_or(Error::Invalid {
            what: "qp_num",
            value: qpn.into(),
            why: "the XRC domain has no such queue pair",
        })
    }

    /// Whether both refer to one domain.
    pub fn is_same_domain(&self, other: &Xrcd) -> bool {
        Arc::ptr_eq(&self.domain, &other.domain)
    }

    /// The SRQ of that number.
    pub(crate) fn srq(&self, number: u32) -> Option<Arc<Srq>> {
        self.domain.srqs.read().get(&number).and_then(Weak::upgrade)
    }

    /// A number for an SRQ of the domain.
    pub(crate) fn take_number(&self) -> Option<u32> {
        self.context().inner().xrc.numbers.lock().take()
    }

    pub(crate) fn add(&self, number: u32, srq: &Arc<Srq>) {
        self.domain.srqs.write().insert(number, Arc::downgrade(srq));
    }

    pub(crate) fn remove(&self, number: u32) {
        self.domain.srqs.write().remove(&number);
        self.context().inner().xrc.numbers.lock().used.remove(&number);
    }

    /// Closes it (ibv_close_xrcd(3)); Busy while a QP or SRQ that was made with it is there. The domain goes with the
    /// last reference to it.
    pub fn destroy(&self) -> Result<(), Error> {
        let host = self.context().inner();
        host.check()?;
        self.identity.retire_unless_used(&self.users)?;
        if self.domain.file.is_some() {
            host.xrc.close(&self.domain);
        }
        Ok(())
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        let _ = self.destroy();
    }
}

object::accessors!(Xrcd);

fn identify(fd: BorrowedFd<'_>, device: u32) -> Result<FileId, Error> {
    let file = File::from(fd.try_clone_to_owned()?).metadata()?;
    Ok(FileId { device, file_system: file.dev(), inode: file.ino() })
}

/// References to a queue pair beyond the first.
#[derive(Debug, Default)]
pub(crate) struct Opened(AtomicUsize);

impl Opened {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// Gives one back; false when there is none.
    pub(crate) fn give_back(&self) -> bool {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_used_again_soon_and_never_0() {
        let mut numbers = Numbers { last: 0xff_fffe, ..Numbers::default() };
        assert_eq!(numbers.take(), Some(0xff_ffff));
        assert_eq!(numbers.take(), Some(1));
        numbers.used.remove(&1);
        assert_eq!(numbers.take(), Some(2));
    }
}
