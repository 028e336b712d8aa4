//! How a slot's socket comes to the group, under the registry's lock, whoever dies at whatever step.
//!
//! The kernel steers by a socket's place in the order in which the port's sockets were bound, so the sockets bound, those
//! stored and those counted must be the same at all times at which the lock is free, but for one that is in the making:
//! and that the mark says, which is set before and cleared behind. Who takes the lock and finds the mark puts right what
//! is half done, and may die of it, or give up: then the mark is still there, and the next one does.
//!
//! The lock is the C library's, the shared state a few words and the kernel's queues: [`World`]. The tests below are the
//! model: every death at every step of several actors in a row.

use std::io;

/// What is shared, with the lock held.
pub(super) trait World {
    /// A socket of the port.
    type Socket;
    /// Why one could not be made.
    type Error;

    /// Sockets counted.
    fn sockets(&self) -> u16;
    fn set_sockets(&self, count: u16);
    /// The mark: one is in the making.
    fn creating(&self) -> bool;
    fn set_creating(&self, creating: bool);
    /// Binds the next socket, which this process alone has.
    fn bind(&self, slot: u16) -> Result<Self::Socket, Self::Error>;
    /// Stores it where no death closes it.
    fn store(&self, slot: u16, socket: Self::Socket) -> Result<(), Self::Error>;
    /// Whether that was done.
    fn is_stored(&self, slot: u16) -> io::Result<bool>;
    /// Waits until no more sockets are bound than so many.
    fn await_bound(&self, count: u16) -> io::Result<()>;
}

/// Adds a socket, and with it a slot.
pub(super) fn add<W: World>(world: &W) -> Result<u16, W::Error> {
    let slot = world.sockets();
    world.set_creating(true);
    let made = world.bind(slot).and_then(|socket| world.store(slot, socket));
    if made.is_ok() {
        world.set_sockets(slot + 1);
    }
    world.set_creating(false);
    made.map(|()| slot)
}

/// Puts right what whoever had the lock before left half done, if anything.
pub(super) fn repair<W: World>(world: &W) -> io::Result<()> {
    if !world.creating() {
        return Ok(());
    }
    let sockets = world.sockets();
    if world.is_stored(sockets)? {
        world.set_sockets(sockets + 1);
    } else {
        // It was in the dead process's hands alone, so it goes; but only when it has gone is the place free (the kernel
        // releases locks before it closes descriptors).
        world.await_bound(sockets)?;
    }
    world.set_creating(false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;

    /// What becomes of a socket whose process died with it in its hands.
    #[derive(Copy, Clone, Debug, PartialEq, Eq)]
    enum Closing {
        /// It is gone when the next one takes the lock.
        Before,
        /// It goes when it is waited for.
        Later,
        /// A stray child keeps it until the one after next comes.
        Never,
    }

    const CLOSINGS: [Closing; 3] = [Closing::Before, Closing::Later, Closing::Never];

    #[derive(Debug, Default)]
    struct Model {
        state: RefCell<State>,
        /// Steps that the present actor has to live.
        life: Cell<Option<u32>>,
    }

    #[derive(Debug, Default)]
    struct State {
        count: u16,
        creating: bool,
        stored: u16,
        /// Bound, and in the hands of the present actor.
        held: u16,
        /// Bound, and in the hands of the dead.
        dying: Vec<Closing>,
    }

    /// How an actor ends that dies.
    struct Death;

    impl Model {
        /// One thing that is done whole or not at all.
        fn step<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
            if let Some(left) = self.life.get() {
                if left == 0 {
                    resume_unwind(Box::new(Death));
                }
                self.life.set(Some(left - 1));
            }
            what(&mut self.state.borrow_mut())
        }

        /// Somebody takes the lock, puts right what is to be put right, adds a socket, and dies after so many steps.
        /// Whether it lived to the end, and then whether it got that far.
        fn act(&self, life: Option<u32>, closing: Closing) -> Option<bool> {
            self.state.borrow_mut().dying.retain(|closing| *closing != Closing::Before);
            self.life.set(life);
            let acts = || repair(self).and_then(|()| add(self));
            let outcome = catch_unwind(AssertUnwindSafe(acts));
            self.life.set(None);
            let mut state = self.state.borrow_mut();
            let held = std::mem::take(&mut state.held);
            match outcome {
                Ok(done) => {
                    // What it could not store it closes.
                    assert!(done.is_err() || held == 0);
                    Some(done.is_ok())
                }
                Err(death) => {
                    assert!(death.is::<Death>(), "a panic of the code's own");
                    // Those that strays have had so far go now.
                    state.dying.iter_mut().for_each(|closing| *closing = Closing::Before);
                    state.dying.extend((0..held).map(|_| closing));
                    None
                }
            }
        }
    }

    impl World for Model {
        type Socket = ();
        type Error = io::Error;

        fn sockets(&self) -> u16 {
            self.step(|state| state.count)
        }

        fn set_sockets(&self, count: u16) {
            self.step(|state| state.count = count);
        }

        fn creating(&self) -> bool {
            self.step(|state| state.creating)
        }

        fn set_creating(&self, creating: bool) {
            self.step(|state| state.creating = creating);
        }

        fn bind(&self, slot: u16) -> io::Result<()> {
            self.step(|state| {
                // The order is the slot: nothing of a dead one's may be in between.
                assert_eq!((state.stored, state.dying.len()), (slot, 0), "{state:?}");
                state.held += 1;
                Ok(())
            })
        }

        fn store(&self, slot: u16, (): ()) -> io::Result<()> {
            self.step(|state| {
                assert_eq!(state.stored, slot);
                state.stored += 1;
                state.held -= 1;
                Ok(())
            })
        }

        fn is_stored(&self, slot: u16) -> io::Result<bool> {
            self.step(|state| Ok(state.stored > slot))
        }

        fn await_bound(&self, count: u16) -> io::Result<()> {
            self.step(|state| {
                state.dying.retain(|closing| *closing == Closing::Never);
                match state.stored as usize + state.dying.len() > count.into() {
                    true => Err(io::ErrorKind::TimedOut.into()),
                    false => Ok(()),
                }
            })
        }
    }

    /// More than anybody takes from the lock to its release.
    const STEPS: u32 = 12;

    #[test]
    fn whoever_dies_at_whatever_step_leaves_what_the_next_can_put_right() {
        let (mut died, mut gave_up) = (0, 0);
        for code in 0..(STEPS * 3).pow(3) {
            let model = Model::default();
            let mut rest = code;
            for _ in 0..3 {
                let (life, closing) = (rest % STEPS, CLOSINGS[(rest / STEPS % 3) as usize]);
                rest /= STEPS * 3;
                match model.act(Some(life), closing) {
                    None => died += 1,
                    Some(false) => gave_up += 1,
                    Some(true) => {}
                }
            }
            // What strays hold they hold no more.
            model.state.borrow_mut().dying.clear();
            let before = model.state.borrow().stored;
            assert_eq!(model.act(None, Closing::Before), Some(true), "{code}: {model:?}");
            let state = model.state.borrow();
            assert_eq!((state.count, state.stored), (before + 1, before + 1), "{code}: {state:?}");
            assert!(!state.creating && state.held == 0, "{code}: {state:?}");
        }
        assert!(died > 10_000 && gave_up > 100, "{died}, {gave_up}: not what was meant");
    }
}
