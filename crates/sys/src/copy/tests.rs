//! Copies that end at, and go beyond, the edge of what is mapped; and whose faults are whose.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::*;
use crate::mem::{Mapping, page_size};
use crate::shm::Memfd;

/// Pages that may be accessed, between two that may not.
struct Island {
    map: Mapping,
    pages: usize,
}

impl Island {
    fn new(pages: usize) -> Island {
        let map = Mapping::anonymous((pages + 2) * page_size()).unwrap();
        let island = Island { map, pages };
        for edge in [island.map.addr(), island.end()] {
            protect(edge, 1, libc::PROT_NONE);
        }
        island
    }

    fn start(&self) -> u64 {
        self.map.addr() + page_size() as u64
    }

    fn end(&self) -> u64 {
        self.start() + (self.pages * page_size()) as u64
    }
}

fn protect(addr: u64, pages: usize, protection: c_int) {
    // SAFETY: the tests' own mappings, accessed by the copies under test only.
    let ret = unsafe { libc::mprotect(addr as *mut c_void, pages * page_size(), protection) };
    assert_eq!(ret, 0);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[test]
fn what_is_there_is_copied_to_the_last_byte() {
    arm().unwrap();
    let island = Island::new(2);
    let data = pattern(5000);
    for len in (0..700).chain([1000, 2048, 4095, 4096, 4097, 5000]) {
        let (first, last) = (island.start(), island.end() - len as u64);
        for at in [first, last] {
            let mut out = vec![0xee; len];
            // SAFETY: the island is ours, and no reference to it exists.
            unsafe {
                assert_eq!(write(at, &data[..len]), Ok(()), "{len}");
                assert_eq!(read(at, &mut out), Ok(()), "{len}");
            }
            assert_eq!(out, data[..len], "{len}");
        }
    }
}

#[test]
fn what_is_not_there_is_an_error_whatever_the_length() {
    arm().unwrap();
    let island = Island::new(1);
    let mut buffer = vec![1; 9000];
    for len in (1..700).chain([2048, 4096, 4097, 8192, 9000]) {
        for at in [island.end() - len as u64 / 2, island.end(), island.start() - 1, 64] {
            if at + len as u64 <= island.end() && at >= island.start() {
                continue;
            }
            // SAFETY: what is there is the island, which is ours.
            unsafe {
                assert_eq!(read(at, &mut buffer[..len]), Err(Unmapped), "{len} at {at:#x}");
                assert_eq!(write(at, &buffer[..len]), Err(Unmapped), "{len} at {at:#x}");
            }
        }
    }
}

#[test]
fn every_offset_and_overlap_is_right() {
    const AREA: usize = 3 * 4096;
    arm().unwrap();
    let map = Mapping::anonymous(AREA).unwrap();
    let clean = pattern(AREA);
    let lengths = [1, 3, 15, 16, 17, 33, 65, 127, 128, 129, 130, 159, 160, 161, 300, 1500, 4096];
    for len in lengths {
        for from in [0, 1, 31, 100, 4097] {
            for to in (0..40).chain([64, 127, 128, 129, 500, 4095, 4096, 4100, 5000, 8000]) {
                let mut want = clean.clone();
                want.copy_within(from..from + len, to);
                let mut found = vec![0; AREA];
                // SAFETY: within the mapping.
                unsafe {
                    write(map.addr(), &clean).unwrap();
                    copy(map.addr() + from as u64, map.addr() + to as u64, len).unwrap();
                    read(map.addr(), &mut found).unwrap();
                }
                assert!(found == want, "{len} bytes from {from} to {to}");
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn each_of_the_loops_copies_and_recovers() {
    arm().unwrap();
    let island = Island::new(2);
    for (name, copy) in own::long_copies() {
        for len in (129..600).chain([4096, 8192]) {
            let (data, mut out) = (pattern(len), vec![0; len]);
            let end = island.end() - len as u64;
            let (from, to) = (data.as_ptr() as u64, out.as_mut_ptr() as u64);
            // SAFETY: the island and the vectors are ours.
            unsafe {
                assert_eq!(copy(end, from, len), 0, "{name} {len}");
                assert_eq!(copy(to, end, len), 0, "{name} {len}");
                assert_eq!(copy(end + 1, from, len), 1, "{name} {len}");
                assert_eq!(copy(island.start() - 1, from, len), 1, "{name} {len}");
                assert_eq!(copy(to, island.start() - 1, len), 1, "{name} {len}");
            }
            assert!(out == data, "{name} {len}");
        }
    }
}

#[test]
fn rights_and_the_ends_of_files_count() {
    arm().unwrap();
    let map = Mapping::anonymous(page_size()).unwrap();
    let mut out = [0; 300];
    // SAFETY: the mapping is ours.
    unsafe {
        map.protect(true, false).unwrap();
        assert_eq!(write(map.addr(), &[1; 300]), Err(Unmapped));
        assert_eq!(fetch_add(map.addr(), 1), Err(AtomicError::Unmapped(Unmapped)));
        assert_eq!(compare_swap(map.addr(), 0, 1), Err(AtomicError::Unmapped(Unmapped)));
        assert_eq!(read(map.addr(), &mut out), Ok(()));
        assert_eq!(out, [0; 300]);
        map.protect(false, false).unwrap();
        assert_eq!(read(map.addr(), &mut out), Err(Unmapped));
        map.protect(true, true).unwrap();
        assert_eq!(write(map.addr(), &[1; 300]), Ok(()));
    }
    let file = TruncatedFile::new();
    // SAFETY: as above; beyond the end of the file every access is a SIGBUS.
    unsafe {
        assert_eq!(read(file.addr, &mut out), Err(Unmapped));
        assert_eq!(write(file.addr, &out[..9]), Err(Unmapped));
        assert_eq!(fetch_add(file.addr, 1), Err(AtomicError::Unmapped(Unmapped)));
    }
}

/// A page mapped from a file that is empty by now.
struct TruncatedFile {
    addr: u64,
}

impl TruncatedFile {
    fn new() -> TruncatedFile {
        // SAFETY: makes a file and a mapping of its own, at an address of the kernel's choice.
        unsafe {
            let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0 && libc::ftruncate(fd, page_size() as i64) == 0);
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            let addr =
                libc::mmap(std::ptr::null_mut(), page_size(), rights, libc::MAP_SHARED, fd, 0);
            assert!(addr != libc::MAP_FAILED && libc::ftruncate(fd, 0) == 0);
            libc::close(fd);
            TruncatedFile { addr: addr as u64 }
        }
    }
}

impl Drop for TruncatedFile {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.addr as *mut c_void, page_size()) };
    }
}

#[test]
fn atomics_are_atomics() {
    arm().unwrap();
    let map = Mapping::anonymous(page_size()).unwrap();
    let word = map.addr() + 16;
    // SAFETY: within the mapping.
    unsafe {
        assert_eq!(fetch_add(word, 7), Ok(0));
        assert_eq!(compare_swap(word, 6, 1), Ok(7));
        assert_eq!(compare_swap(word, 7, 1), Ok(7));
        assert_eq!(fetch_add(word, u64::MAX), Ok(1));
        assert_eq!(fetch_add(word, 0), Ok(0));
        assert_eq!(fetch_add(word + 1, 0), Err(Misaligned(word + 1).into()));
        assert_eq!(compare_swap(0, 0, 0), Err(Misaligned(0).into()));
        assert_eq!(compare_swap(8, 0, 0), Err(Unmapped.into()));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..100_000).for_each(|_| assert!(fetch_add(word, 1).is_ok())));
            }
        });
        assert_eq!(fetch_add(word, 0), Ok(200_000));
    }
}

#[test]
fn threads_that_fault_at_once_all_recover() {
    arm().unwrap();
    let island = Island::new(1);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let island = &island;
            scope.spawn(move || {
                let mut buffer = [0; 500];
                for i in 0..20_000usize {
                    let len = 1 + (i * 13 + thread) % 500;
                    // SAFETY: what is there of it is the island.
                    let read = unsafe { read(island.end() - (i % 2) as u64, &mut buffer[..len]) };
                    assert_eq!(read.is_ok(), len == 1 && i % 2 == 1);
                }
            });
        }
    });
}

/// How a child of fork(2) that runs `f` ends: its exit code, or the signal that ended it.
fn in_child(f: fn()) -> Result<i32, i32> {
    // SAFETY: the child runs what is written below, on a single thread, and leaves by _exit.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::alarm(60);
            let passed = std::panic::catch_unwind(f).is_ok();
            libc::_exit(if passed { 0 } else { 101 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        match libc::WIFEXITED(status) {
            true => Ok(libc::WEXITSTATUS(status)),
            false => Err(libc::WTERMSIG(status)),
        }
    }
}

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the handlers of the tests saw last.
static SEEN: AtomicUsize = AtomicUsize::new(0);
static SEEN_ADDR: AtomicU64 = AtomicU64::new(0);
static SEEN_BLOCKED: AtomicUsize = AtomicUsize::new(0);
static SEEN_STACK: AtomicUsize = AtomicUsize::new(0);

fn is_blocked(signal: c_int) -> bool {
    let mut mask = MaybeUninit::zeroed();
    // SAFETY: asks for this thread's mask.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
        libc::sigismember(mask.as_ptr(), signal) == 1
    }
}

/// A program's handler: notes what it sees, and makes the memory accessible so that the access is
/// repeated.
extern "C" fn repair(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    let local = 0;
    // SAFETY: the kernel's siginfo of a fault.
    let addr = unsafe { (*info).si_addr() } as u64;
    SEEN.fetch_add(1, Ordering::Relaxed);
    SEEN_ADDR.store(addr, Ordering::Relaxed);
    SEEN_BLOCKED.store(
        usize::from(is_blocked(signal)) + 2 * usize::from(is_blocked(libc::SIGUSR1)),
        Ordering::Relaxed,
    );
    SEEN_STACK.store(&raw const local as usize, Ordering::Relaxed);
    let page = addr - addr % page_size() as u64;
    protect(page, 1, libc::PROT_READ | libc::PROT_WRITE);
}

extern "C" fn leave_by_exit(_: c_int) {
    // SAFETY: ends the child.
    unsafe { libc::_exit(7) };
}

static OLDER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// A handler that knows nothing and passes on to the one it has replaced.
extern "C" fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    SEEN.fetch_add(1, Ordering::Relaxed);
    let older = OLDER[usize::from(signal == libc::SIGBUS)].load(Ordering::Relaxed);
    // SAFETY: the tests use it over handlers that take three arguments.
    unsafe {
        std::mem::transmute::<usize, extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void)>(
            older,
        )(signal, info, context);
    }
}

fn set(handler: usize, flags: c_int, mask: &[c_int]) -> [libc::sigaction; 2] {
    SIGNALS.map(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zero is a valid action, which is filled in; the handlers are functions above.
        unsafe {
            let action = action.assume_init_mut();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            mask.iter().for_each(|&signal| {
                libc::sigaddset(&mut action.sa_mask, signal);
            });
            assert_eq!(libc::sigaction(signal, action, before.as_mut_ptr()), 0);
            before.assume_init()
        }
    })
}

/// The program's own access: not by a copy of ours.
fn touch(addr: u64) {
    // SAFETY: the tests' own memory, or a fault that is wanted.
    unsafe { std::ptr::write_volatile(addr as *mut u8, 1) };
}

fn assert_ours_are_recovered() {
    let (island, file) = (Island::new(1), TruncatedFile::new());
    let mut out = [0; 200];
    // SAFETY: nothing is there.
    unsafe {
        assert_eq!(read(island.end(), &mut out), Err(Unmapped));
        assert_eq!(write(island.end(), &out[..8]), Err(Unmapped));
        assert_eq!(read(file.addr, &mut out), Err(Unmapped));
    }
}

#[test]
fn faults_of_the_program_end_it_as_ever() {
    let fault = || {
        set(libc::SIG_DFL, 0, &[]);
        arm().unwrap();
        assert_ours_are_recovered();
        touch(Island::new(1).end());
    };
    assert_eq!(in_child(fault), Err(libc::SIGSEGV));
    let fault = || {
        set(libc::SIG_DFL, 0, &[]);
        arm().unwrap();
        touch(TruncatedFile::new().addr);
    };
    assert_eq!(in_child(fault), Err(libc::SIGBUS));
    // Not even one that ignores them survives a fault.
    let fault = || {
        set(libc::SIG_IGN, 0, &[]);
        arm().unwrap();
        assert_ours_are_recovered();
        touch(Island::new(1).end());
    };
    assert_eq!(in_child(fault), Err(libc::SIGSEGV));
}

#[test]
fn signals_that_were_sent_do_what_they_did() {
    let sent = || {
        set(libc::SIG_DFL, 0, &[]);
        arm().unwrap();
        // SAFETY: no pointers.
        unsafe { libc::kill(libc::getpid(), libc::SIGSEGV) };
    };
    assert_eq!(in_child(sent), Err(libc::SIGSEGV));
    let ignored = || {
        set(libc::SIG_IGN, 0, &[]);
        arm().unwrap();
        for signal in SIGNALS {
            // SAFETY: no pointers.
            unsafe { libc::kill(libc::getpid(), signal) };
        }
    };
    assert_eq!(in_child(ignored), Ok(0));
    let handled = || {
        set(leave_by_exit as *const () as usize, 0, &[]);
        arm().unwrap();
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGBUS) };
    };
    assert_eq!(in_child(handled), Ok(7));
}

#[test]
fn a_handler_from_before_gets_what_is_not_ours_as_it_wished() {
    let child = || {
        for (flags, blocked) in [(0, 3), (libc::SA_NODEFER, 2)] {
            set(repair as *const () as usize, libc::SA_SIGINFO | flags, &[libc::SIGUSR1]);
            arm().unwrap();
            let island = Island::new(1);
            let seen = SEEN.load(Ordering::Relaxed);
            assert_ours_are_recovered();
            assert_eq!(SEEN.load(Ordering::Relaxed), seen);
            touch(island.end() + 5);
            assert_eq!(SEEN.load(Ordering::Relaxed), seen + 1);
            assert_eq!(SEEN_ADDR.load(Ordering::Relaxed), island.end() + 5);
            assert_eq!(SEEN_BLOCKED.load(Ordering::Relaxed), blocked);
            assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGSEGV));
        }
    };
    assert_eq!(in_child(child), Ok(0));
}

#[test]
fn a_handler_for_one_fault_gets_one() {
    let child = || {
        set(repair as *const () as usize, libc::SA_SIGINFO | libc::SA_RESETHAND, &[]);
        arm().unwrap();
        let island = Island::new(1);
        touch(island.end());
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
        assert_ours_are_recovered();
        touch(island.start() - 1);
    };
    assert_eq!(in_child(child), Err(libc::SIGSEGV));
}

#[test]
fn a_handler_runs_on_the_stack_it_asked_for() {
    let child = || {
        let stack = Mapping::anonymous(64 * 1024).unwrap();
        let range = stack.addr() as usize..stack.addr() as usize + stack.len();
        let other =
            libc::stack_t { ss_sp: stack.as_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        // SAFETY: the mapping lives until the child ends.
        assert_eq!(unsafe { libc::sigaltstack(&other, std::ptr::null_mut()) }, 0);
        for flag in [libc::SA_ONSTACK, 0] {
            set(repair as *const () as usize, libc::SA_SIGINFO | flag, &[]);
            arm().unwrap();
            let island = Island::new(1);
            assert_ours_are_recovered();
            touch(island.end());
            assert_eq!(range.contains(&SEEN_STACK.load(Ordering::Relaxed)), flag != 0);
        }
        std::mem::forget(stack);
    };
    assert_eq!(in_child(child), Ok(0));
}

#[test]
fn a_handler_that_comes_later_keeps_its_faults_and_ours_are_ours_again() {
    let child = || {
        set(libc::SIG_DFL, 0, &[]);
        arm().unwrap();
        // One that asks nobody: until we look again, it has ours too.
        set(repair as *const () as usize, libc::SA_SIGINFO, &[]);
        let island = Island::new(1);
        // SAFETY: the handler makes it accessible.
        assert_eq!(unsafe { write(island.end(), &[1]) }, Ok(()));
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
        arm().unwrap();
        assert_ours_are_recovered();
        assert_eq!(SEEN.load(Ordering::Relaxed), 1);
        touch(Island::new(1).end());
        assert_eq!(SEEN.load(Ordering::Relaxed), 2);
        // Taken away again, there is nobody left to ask.
        set(libc::SIG_DFL, 0, &[]);
        arm().unwrap();
        assert_ours_are_recovered();
        touch(Island::new(1).end());
    };
    assert_eq!(in_child(child), Err(libc::SIGSEGV));
}

#[test]
fn handlers_that_pass_on_make_no_circle() {
    let child = || {
        set(libc::SIG_DFL, 0, &[]);
        arm().unwrap();
        let before = set(pass_on as *const () as usize, libc::SA_SIGINFO, &[]);
        for (older, before) in OLDER.iter().zip(before) {
            older.store(before.sa_sigaction, Ordering::Relaxed);
        }
        // Ours come to us through it,
        assert_ours_are_recovered();
        assert_eq!(SEEN.load(Ordering::Relaxed), 3);
        // and at once when we have looked again.
        arm().unwrap();
        assert_ours_are_recovered();
        assert_eq!(SEEN.load(Ordering::Relaxed), 3);
        // Through it, through us of earlier, to nobody.
        touch(Island::new(1).end());
    };
    assert_eq!(in_child(child), Err(libc::SIGSEGV));
}

#[test]
fn looking_again_without_end_changes_nothing() {
    let child = || {
        for round in 0..100 {
            let handler =
                if round % 2 == 0 { libc::SIG_DFL } else { leave_by_exit as *const () as usize };
            set(handler, 0, &[]);
            arm().unwrap();
            arm().unwrap();
            assert_ours_are_recovered();
        }
        touch(Island::new(1).end());
    };
    assert_eq!(in_child(child), Ok(7));
}

fn block_faults() {
    let mut mask = MaybeUninit::zeroed();
    // SAFETY: a set that is made empty, then filled.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        SIGNALS.iter().for_each(|&signal| {
            libc::sigaddset(mask.as_mut_ptr(), signal);
        });
        libc::pthread_sigmask(libc::SIG_BLOCK, mask.as_ptr(), std::ptr::null_mut());
    }
}

#[test]
fn where_the_signals_are_blocked_the_kernel_copies() {
    let killed = || {
        arm().unwrap();
        block_faults();
        assert_ours_are_recovered();
    };
    assert_eq!(in_child(killed), Err(libc::SIGSEGV));
    let child = || {
        arm().unwrap();
        use_kernel().unwrap();
        block_faults();
        assert_ours_are_recovered();
        let island = Island::new(1);
        // SAFETY: the island is ours; beyond it nothing is there.
        unsafe {
            assert_eq!(fetch_add(island.end(), 1), Err(Unmapped.into()));
            assert_eq!(fetch_add(island.start(), 1), Ok(0));
            assert_eq!(write(island.start(), &[5; 3000]), Ok(()));
            let mut out = [0; 3000];
            assert_eq!(read(island.start(), &mut out), Ok(()));
            assert_eq!(out, [5; 3000]);
        }
        assert!(SIGNALS.into_iter().all(is_blocked));
    };
    assert_eq!(in_child(child), Ok(0));
}

#[test]
fn a_fork_recovers_too() {
    arm().unwrap();
    assert_eq!(in_child(assert_ours_are_recovered), Ok(0));
}

#[test]
fn a_file_size_limit_is_an_error_and_no_signal() {
    let child = || {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        // SAFETY: a live limit.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) };
        let error = Memfd::create(c"test", 65_536).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        let text = error.to_string();
        assert!(text.contains("65536") && text.contains("RLIMIT_FSIZE"), "{text}");
        assert!(!is_blocked(libc::SIGXFSZ));
        Memfd::create(c"test", 4096).unwrap();
        // Nothing is left that would come later, and what the program does to itself still ends it.
        // SAFETY: no pointers.
        unsafe { libc::raise(libc::SIGXFSZ) };
    };
    assert_eq!(in_child(child), Err(libc::SIGXFSZ));
}

#[test]
fn put_copies_every_length_at_every_alignment() {
    let source: Vec<u8> = (0..600u32).map(|n| (n * 7) as u8).collect();
    for len in (0..80).chain([255, 256, 257, 511]) {
        for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 5), (8, 16), (7, 4), (0, 2)] {
            let mut target = vec![0xee; 600];
            let (src, dst) = (source.as_ptr() as u64 + from, target.as_mut_ptr() as u64 + to);
            // SAFETY: both are longer than any offset and length here.
            unsafe { put(src, dst, len) }.unwrap();
            let (from, to) = (from as usize, to as usize);
            assert_eq!(target[to..to + len], source[from..from + len], "{len} {from} {to}");
            assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0xee));
        }
    }
}

#[test]
fn put_moves_what_overlaps() {
    for (from, to) in [(0, 3), (3, 0), (0, 16), (16, 0), (5, 5)] {
        let mut bytes: Vec<u8> = (0..200).collect();
        let mut expected = bytes.clone();
        expected.copy_within(from..from + 100, to);
        let base = bytes.as_mut_ptr() as u64;
        // SAFETY: within the vector.
        unsafe { put(base + from as u64, base + to as u64, 100) }.unwrap();
        assert_eq!(bytes, expected, "{from} {to}");
    }
}

#[test]
fn put_tells_what_is_not_there() {
    arm().unwrap();
    let page = page_size();
    let map = Mapping::anonymous(2 * page).unwrap();
    map.protect_from(page, false, false).unwrap();
    let here = [1u8; 64];
    let (here, edge) = (here.as_ptr() as u64, map.addr() + page as u64);
    for len in [1, 2, 3, 4, 8, 9, 16, 40] {
        for before in [0, 1, 8].into_iter().filter(|before| *before < len) {
            // SAFETY: what is mapped is ours.
            let done = unsafe { put(here, edge - before as u64, len) };
            assert_eq!(done, Err(Unmapped), "{len} bytes, {before} of them there");
            // SAFETY: what is read is ours, or not there.
            assert_eq!(unsafe { put(edge - before as u64, map.addr(), len) }, Err(Unmapped));
        }
        // SAFETY: what is mapped is ours.
        unsafe { put(here, edge - len as u64, len) }.unwrap();
    }
}
