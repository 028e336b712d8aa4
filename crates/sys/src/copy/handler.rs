//! The handler of SIGSEGV and SIGBUS that lets a copy return an error, and leaves every other fault to
//! whoever had it before.
//!
//! Each time that we find another handler in our place, a handler of ours is put before it that was
//! never used: it has one predecessor, for ever. So a chain of handlers has no circle, also where the
//! program's own handler passes on what it does not know to the one before it, which is ours of
//! earlier.
//!
//! Nothing here allocates or locks: it runs in a signal handler, in forked children, and in threads
//! that start at the same time.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::process::check;

/// How often another handler in our place is put behind ours; then we have faults only by its
/// courtesy.
const GENERATIONS: usize = 16;

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

macro_rules! handlers {
    ($($generation:literal)*) => { [$(on_fault::<$generation>),*] };
}

const HANDLERS: [Handler; GENERATIONS] = handlers!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

/// What was there before a handler of ours.
struct Before {
    /// The action that was found, and the one that `sigaction` then said it has replaced: another
    /// thread may have come in between.
    actions: [UnsafeCell<MaybeUninit<libc::sigaction>>; 2],
    /// How many of them are written; the last one counts.
    known: AtomicUsize,
    /// Has run, and was to run once (SA_RESETHAND).
    spent: AtomicBool,
}

// SAFETY: `actions` are written by the thread that claimed the entry, each before it is counted in
// `known`, and never again.
unsafe impl Sync for Before {}

impl Before {
    const fn new() -> Before {
        Before {
            actions: [const { UnsafeCell::new(MaybeUninit::uninit()) }; 2],
            known: AtomicUsize::new(0),
            spent: AtomicBool::new(false),
        }
    }

    fn action(&self) -> Option<libc::sigaction> {
        // SYNC POINT: with the store in `learn`.
        let last = self.known.load(Ordering::Acquire).checked_sub(1)?;
        // SAFETY: written before it was counted.
        self.actions.get(last).map(|action| unsafe { (*action.get()).assume_init() })
    }

    /// # Safety
    /// Only the thread that claimed the entry calls this, twice at most.
    unsafe fn learn(&self, action: &libc::sigaction) {
        let known = self.known.load(Ordering::Relaxed);
        if let Some(place) = self.actions.get(known) {
            // SAFETY: nobody reads it before it is counted.
            unsafe { (*place.get()).write(*action) };
            // SYNC POINT: with the load in `action`.
            self.known.store(known + 1, Ordering::Release);
        }
    }
}

/// One signal's handlers.
struct Chain {
    signal: c_int,
    claimed: AtomicUsize,
    before: [Before; GENERATIONS],
}

static CHAINS: [Chain; 2] = [Chain::new(libc::SIGSEGV), Chain::new(libc::SIGBUS)];

impl Chain {
    const fn new(signal: c_int) -> Chain {
        Chain {
            signal,
            claimed: AtomicUsize::new(0),
            before: [const { Before::new() }; GENERATIONS],
        }
    }

    /// Sees to it that a handler of ours comes first.
    fn arm(&self) -> io::Result<()> {
        let present = current(self.signal)?;
        if HANDLERS.iter().any(|&handler| handler as usize == present.sa_sigaction) {
            return Ok(());
        }
        let again = self.before.iter().position(|before| {
            before.action().is_some_and(|known| is_same(&known, &present))
                && !before.spent.load(Ordering::Relaxed)
        });
        if let Some(generation) = again {
            return install(self.signal, generation, &present).map(drop);
        }
        let Some((generation, before)) = self.claim() else { return Ok(()) };
        // SAFETY: we have just claimed it.
        unsafe { before.learn(&present) };
        let replaced = install(self.signal, generation, &present)?;
        // One that came meanwhile is before us now; not so ourselves, by another thread.
        let ourselves = HANDLERS.get(generation).map(|&handler| handler as usize);
        if !is_same(&replaced, &present) && Some(replaced.sa_sigaction) != ourselves {
            // SAFETY: as above, for the second time.
            unsafe { before.learn(&replaced) };
        }
        Ok(())
    }

    /// A generation that was never used; None when all are.
    fn claim(&self) -> Option<(usize, &Before)> {
        let next = |claimed: usize| (claimed < GENERATIONS).then_some(claimed + 1);
        let claim = self.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let generation = claim.ok()?;
        Some((generation, self.before.get(generation)?))
    }
}

/// Sees to it that faults of this module's copies come to us first; cheap when they do.
///
/// # Errors
/// As sigaction(2), where a sandbox forbids it.
pub(super) fn arm() -> io::Result<()> {
    static PINNED: Once = Once::new();
    PINNED.call_once(stay_loaded);
    CHAINS.iter().try_for_each(Chain::arm)
}

/// A handler must outlive a dlclose(3) of the library that it came with.
fn stay_loaded() {
    let mut place = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of ours, and room for what is told of it.
    if unsafe { libc::dladdr(on_fault::<0> as *const c_void, place.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: filled in, as the call succeeded.
    let file = unsafe { place.assume_init() }.dli_fname;
    if !file.is_null() {
        // SAFETY: a name that the loader keeps. RTLD_NOLOAD: it is loaded already, or nothing is.
        unsafe { libc::dlopen(file, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

fn current(signal: c_int) -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: only asks, into room for the answer.
    check(unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) })?;
    // SAFETY: all zero is a value of it, and the call has filled it in.
    Ok(unsafe { action.assume_init() })
}

/// Puts our handler before `present`, and tells what was replaced. What can be had of the
/// predecessor's wishes, its mask and stack, the kernel does by itself.
fn install(
    signal: c_int,
    generation: usize,
    present: &libc::sigaction,
) -> io::Result<libc::sigaction> {
    let mut action = *present;
    let handler = HANDLERS.get(generation).copied().unwrap_or(on_fault::<0>);
    action.sa_sigaction = handler as usize;
    if is_function(present) {
        action.sa_flags = present.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO;
    } else {
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: a set to be made empty.
        unsafe { libc::sigemptyset(&mut action.sa_mask) };
    }
    let mut replaced = MaybeUninit::zeroed();
    // SAFETY: the handler does async-signal-safe things only and is never unloaded.
    check(unsafe { libc::sigaction(signal, &action, replaced.as_mut_ptr()) })?;
    // SAFETY: all zero is a value of it, and the call has filled it in.
    Ok(unsafe { replaced.assume_init() })
}

fn is_function(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

fn is_same(a: &libc::sigaction, b: &libc::sigaction) -> bool {
    let member = |set: &libc::sigset_t, signal| {
        // SAFETY: an initialised set.
        unsafe { libc::sigismember(set, signal) == 1 }
    };
    a.sa_sigaction == b.sa_sigaction
        && a.sa_flags == b.sa_flags
        && (1..64).all(|signal| member(&a.sa_mask, signal) == member(&b.sa_mask, signal))
}

unsafe extern "C" fn on_fault<const GENERATION: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel, or the handler before, gives valid pointers or none.
    let code = unsafe { info.as_ref() }.map_or(0, |info| info.si_code);
    // What was sent by kill(2), and early news of bad memory, interrupt us by chance.
    let is_fault = code > 0 && (signal, code) != (libc::SIGBUS, BUS_MCEERR_AO);
    // SAFETY: the context of this signal.
    if is_fault && unsafe { super::own::recover(context) } {
        return;
    }
    let chain = CHAINS.iter().find(|chain| chain.signal == signal);
    let before = chain.and_then(|chain| chain.before.get(GENERATION));
    let action = before.and_then(Before::action);
    match (action, before) {
        (Some(action), Some(before)) if is_function(&action) => {
            let once = action.sa_flags & libc::SA_RESETHAND != 0;
            if once && before.spent.swap(true, Ordering::AcqRel) {
                // SAFETY: as it came.
                return unsafe { die(signal, is_fault, info) };
            }
            // SAFETY: the program, or a library of it, made this the handler of this signal, to be
            // called as its flags say.
            unsafe { call(&action, signal, info, context) };
        }
        // Not even SIG_IGN ignores a fault.
        (Some(action), _) if action.sa_sigaction == libc::SIG_IGN && !is_fault => {}
        // SAFETY: as it came.
        _ => unsafe { die(signal, is_fault, info) },
    }
}

/// A memory error that nobody has met yet (sigaction(2)); libc has no name for it.
const BUS_MCEERR_AO: c_int = 5;

/// # Safety
/// `action` is a function that was made the handler of `signal`; the rest is as the kernel gave it.
unsafe fn call(
    action: &libc::sigaction,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    // SAFETY: not SIG_DFL nor SIG_IGN, so the address of a function, whose kind the flag tells.
    unsafe {
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            let handler = std::mem::transmute::<usize, Handler>(action.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler =
                std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(action.sa_sigaction);
            handler(signal);
        }
    }
    crate::errno::set(errno);
}

/// Does what happens without a handler. A fault happens again when we return, and the kernel ends the
/// process at the very instruction, so that its core shows what it would without us. What was sent
/// is sent again.
///
/// # Safety
/// `info` is as the kernel gave it.
unsafe fn die(signal: c_int, is_fault: bool, info: *mut libc::siginfo_t) {
    // SAFETY: all zero is SIG_DFL without flags; the calls take no other pointers than `info`, which
    // the kernel validates.
    unsafe {
        let default = MaybeUninit::<libc::sigaction>::zeroed();
        libc::sigaction(signal, default.as_ptr(), std::ptr::null_mut());
        if !is_fault {
            let (pid, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, thread, signal, info);
        }
    }
}

/// Runs `f` while this thread does not block the two signals.
pub(super) fn unblocked<T>(f: impl FnOnce() -> T) -> T {
    let mut ours = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sets of our own, initialised by sigemptyset before they are used.
    let changed = unsafe {
        libc::sigemptyset(ours.as_mut_ptr());
        libc::sigaddset(ours.as_mut_ptr(), libc::SIGSEGV);
        libc::sigaddset(ours.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, ours.as_ptr(), before.as_mut_ptr()) == 0
    };
    let value = f();
    if changed {
        // SAFETY: the mask that the call gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    value
}
