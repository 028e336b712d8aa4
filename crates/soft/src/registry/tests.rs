//! Process tests of what only the inside can do.
