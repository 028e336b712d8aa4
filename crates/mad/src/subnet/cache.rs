//! Paths that the administrator has told of.

use std::collections::HashMap;

use ironverbs_wire::Gid;

use super::SaPath;
use crate::Instant;

/// Paths kept, at most: with more, all are asked for anew.
const MOST: usize = 65_536;

/// How long a path is taken to be right, in nanoseconds: a report that one of its ends is gone may be lost. A minute.
const LIFE: u64 = 60_000_000_000;

/// Path records by source and destination, until something is heard that may have changed them.
#[derive(Debug, Default)]
pub struct PathCache {
    paths: HashMap<(Gid, Gid), (SaPath, Instant)>,
}

impl PathCache {
    /// The path from `source` to `target`, if it is known.
    pub fn get(&self, now: Instant, source: &Gid, target: &Gid) -> Option<SaPath> {
        let (path, until) = self.paths.get(&(*source, *target))?;
        (*until > now).then_some(*path)
    }

    /// Keeps a path.
    pub fn put(&mut self, now: Instant, path: SaPath) {
        if self.paths.len() >= MOST {
            self.paths.clear();
        }
        self.paths.insert((path.sgid, path.dgid), (path, now.after(LIFE)));
    }

    /// Forgets the paths of a port that came or went.
    pub fn invalidate(&mut self, gid: &Gid) {
        self.paths.retain(|(source, target), _| source != gid && target != gid);
    }

    /// Forgets all: another manager has the subnet.
    pub fn clear(&mut self) {
        self.paths.clear();
    }

    /// How many it knows.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}
