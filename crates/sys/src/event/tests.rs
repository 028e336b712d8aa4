use std::io::ErrorKind;
use std::sync::mpsc;

use super::*;

/// Longer than anything here takes.
const WATCHDOG: Duration = Duration::from_secs(20);

fn set_nonblocking(event: &EventFd, on: bool) {
    let flags = if on { libc::O_NONBLOCK } else { 0 };
    // SAFETY: changes the flags of a descriptor that the test owns.
    assert_eq!(unsafe { libc::fcntl(event.as_fd().as_raw_fd(), libc::F_SETFL, flags) }, 0);
}

#[test]
fn a_counter_reads_the_sum_and_a_semaphore_one() {
    for (mode, reads) in [(EventMode::Counter, vec![3]), (EventMode::Semaphore, vec![1, 1, 1])] {
        let event = EventFd::new(mode, true).unwrap();
        for _ in 0..3 {
            event.signal().unwrap();
        }
        for value in reads {
            assert_eq!(event.try_read().unwrap(), Some(value), "{mode:?}");
        }
        assert_eq!(event.try_read().unwrap(), None, "{mode:?}");
    }
}

#[test]
fn try_read_never_blocks() {
    for nonblocking in [false, true] {
        let event = EventFd::new(EventMode::Counter, nonblocking).unwrap();
        assert_eq!(event.try_read().unwrap(), None);
        assert_eq!(event.try_read_polled().unwrap(), None);
        event.signal().unwrap();
        assert_eq!(event.try_read_polled().unwrap(), Some(1));
    }
}

#[test]
fn read_honours_the_flag_that_the_user_set() {
    let event = EventFd::new(EventMode::Counter, false).unwrap();
    set_nonblocking(&event, true);
    assert_eq!(event.read().unwrap_err().kind(), ErrorKind::WouldBlock);

    set_nonblocking(&event, false);
    let other = EventFd::from(event.as_fd().try_clone_to_owned().unwrap());
    let (tx, rx) = mpsc::channel();
    let reader = spawn_thread("reader", move || tx.send(other.read().unwrap()).unwrap()).unwrap();
    // Blocked: it says nothing, however long one waits; a moment here.
    assert!(rx.recv_timeout(Duration::from_millis(50)).is_err());
    event.signal().unwrap();
    assert_eq!(rx.recv_timeout(WATCHDOG).unwrap(), 1);
    reader.join().unwrap();
}

#[test]
fn epoll_reports_tokens_and_keeps_quiet_after_remove() {
    let epoll = Epoll::new().unwrap();
    let event = EventFd::new(EventMode::Counter, true).unwrap();
    let mut events = [Event::EMPTY; 4];
    epoll.add(event.as_fd(), 7, Interest::READ).unwrap();
    assert_eq!(epoll.wait(&mut events, Some(Duration::ZERO)).unwrap(), 0);

    event.signal().unwrap();
    assert_eq!(epoll.wait(&mut events, Some(WATCHDOG)).unwrap(), 1);
    assert_eq!((events[0].token(), events[0].ready()), (7, Interest::READ));

    epoll.modify(event.as_fd(), 8, Interest::WRITE).unwrap();
    assert_eq!(epoll.wait(&mut events, None).unwrap(), 1);
    assert_eq!((events[0].token(), events[0].ready()), (8, Interest::WRITE));

    epoll.remove(event.as_fd()).unwrap();
    assert_eq!(epoll.wait(&mut events, Some(Duration::from_micros(300))).unwrap(), 0);
    assert_eq!(epoll.wait_ms(&mut events, Some(Duration::from_micros(300))).unwrap(), 0);
}

#[test]
fn a_wait_lasts_its_timeout() {
    let epoll = Epoll::new().unwrap();
    let mut events = [Event::EMPTY; 1];
    let timeout = Duration::from_micros(2500);
    let before = std::time::Instant::now();
    assert_eq!(epoll.wait(&mut events, Some(timeout)).unwrap(), 0);
    assert_eq!(epoll.wait_ms(&mut events, Some(timeout)).unwrap(), 0);
    assert!(before.elapsed() >= 2 * timeout);
    assert_eq!(epoll.wait(&mut [], Some(timeout)).unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// The mask of the calling thread, by /proc: bit n-1 is signal n.
fn blocked() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

#[test]
fn a_spawned_thread_takes_no_signal_but_its_own_faults() {
    let before = blocked();
    let thread = spawn_thread("masked", || {
        (blocked(), std::fs::read_to_string("/proc/thread-self/comm").unwrap())
    });
    let (mask, name) = thread.unwrap().join().unwrap();
    assert_eq!(name.trim(), "masked");
    let has = |signal: c_int| mask & (1 << (signal - 1)) != 0;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGALRM, libc::SIGUSR1, libc::SIGCHLD, 40] {
        assert!(has(signal), "signal {signal} is deliverable");
    }
    for signal in FAULTS {
        assert!(!has(signal), "signal {signal} is blocked");
    }
    assert_eq!(blocked(), before, "the creator's mask changed");
}
