//! What the two sides tell each other: one JSON object a line.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::stream::Stream;

/// Raised with every change that an older peer would misunderstand.
pub(crate) const PROTOCOL: u32 = 1;

/// No message is nearly as long; a peer that sends more is not one of us.
const MAX_LINE: usize = 64 * 1024;

/// Transport service.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Rc => "RC",
            Transport::Uc => "UC",
            Transport::Ud => "UD",
        }
    }
}

/// One operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Send => "send",
            Operation::Write => "write",
            Operation::Read => "read",
            Operation::FetchAdd => "fetch_add",
            Operation::CompareSwap => "compare_swap",
        }
    }

    pub(crate) fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd | Operation::CompareSwap)
    }
}

/// How requests follow each other.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// As many as the window allows.
    Bandwidth,
    /// One after the other. A SEND is echoed.
    Latency,
}

/// One measurement.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Test {
    pub(crate) transport: Transport,
    pub(crate) operation: Operation,
    pub(crate) mode: Mode,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Requests outstanding at most; as many slots has the target's memory.
    pub(crate) window: u32,
    /// The data is made from `seed` and checked where it arrives.
    pub(crate) verify: bool,
    pub(crate) seed: u64,
    /// Path MTU, as in `enum ibv_mtu`.
    pub(crate) mtu: u8,
}

/// What one side must know of the other's QP and memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) qkey: u32,
    pub(crate) gid: String,
    /// Memory for WRITE, READ and atomics.
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}

/// What became of the checked data.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checked {
    /// Messages that held what they should.
    pub(crate) right: u64,
    /// Messages that did not.
    pub(crate) wrong: u64,
}

impl Checked {
    /// One message.
    pub(crate) fn one(right: bool) -> Checked {
        Checked { right: right.into(), wrong: (!right).into() }
    }
}

impl std::ops::AddAssign for Checked {
    fn add_assign(&mut self, other: Checked) {
        self.right += other.right;
        self.wrong += other.wrong;
    }
}

/// Everything that is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Message {
    /// Client, first.
    Hello { program: String, protocol: u32, version: String },
    /// Server, in answer.
    Welcome { program: String, protocol: u32, version: String, mtu: u8 },
    /// Client: begin this test; my QP.
    Start { test: Test, endpoint: Peer },
    /// Server: my QP is ready to receive and to send.
    Ready { endpoint: Peer },
    /// Client: check these writes, which have completed.
    Check { first: u64, count: u64 },
    /// Server, in answer.
    CheckDone { checked: Checked },
    /// Client: that was all.
    Finish { sent: u64 },
    /// Server, in answer: messages received (SEND), what was checked, the counter (atomics).
    Summary { received: u64, checked: Checked, counter: u64 },
    /// Client: no more tests.
    Bye,
    /// Either: it cannot go on.
    Error { message: String },
}

/// Why the conversation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TalkError {
    /// The connection broke or was refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer hung up.
    #[error("the peer closed the connection")]
    Closed,
    /// It said something that is no message.
    #[error("the peer does not speak our protocol: {what}")]
    Foreign {
        /// What it said.
        what: String,
    },
    /// It said something that does not belong here.
    #[error("the peer answered out of turn: {what}")]
    Unexpected {
        /// What it said.
        what: String,
    },
    /// Another version.
    #[error(
        "the peer ({version}) speaks protocol {theirs}, this command {PROTOCOL}: install the same version on both sides"
    )]
    Version {
        /// Its protocol.
        theirs: u64,
        /// Its version.
        version: String,
    },
    /// Nothing came.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// The peer gave up and said why.
    #[error("the peer failed: {0}")]
    Peer(String),
}

/// The conversation.
pub(crate) struct Talk {
    stream: Stream,
    buffer: Vec<u8>,
    closed: bool,
}

impl Talk {
    pub(crate) fn new(stream: Stream) -> Talk {
        Talk { stream, buffer: Vec::new(), closed: false }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn send(&mut self, message: &Message) -> Result<(), TalkError> {
        let mut line = serde_json::to_vec(message).map_err(io::Error::from)?;
        line.push(b'\n');
        self.stream.send(&line)?;
        Ok(())
    }

    /// The next message, waiting for it at most `limit`.
    pub(crate) fn receive(&mut self, limit: Duration) -> Result<Message, TalkError> {
        self.wait(limit)?.ok_or(TalkError::Silent(limit))
    }

    /// The next message, if it comes within `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<Option<Message>, TalkError> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(message) = self.take_line()? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.fill(left)?;
        }
    }

    /// The next message if it is there; does not wait.
    pub(crate) fn look(&mut self) -> Result<Option<Message>, TalkError> {
        if let Some(message) = self.take_line()? {
            return Ok(Some(message));
        }
        self.fill(Duration::ZERO)?;
        self.take_line()
    }

    fn fill(&mut self, patience: Duration) -> Result<(), TalkError> {
        self.closed |= !self.stream.receive(&mut self.buffer, patience)?;
        Ok(())
    }

    fn take_line(&mut self) -> Result<Option<Message>, TalkError> {
        let Some(end) = self.buffer.iter().position(|&b| b == b'\n') else {
            if self.buffer.len() > MAX_LINE {
                return Err(TalkError::Foreign { what: shown(&self.buffer) });
            }
            return match (self.closed, self.buffer.is_empty()) {
                (false, _) => Ok(None),
                (true, true) => Err(TalkError::Closed),
                (true, false) => Err(TalkError::Foreign { what: shown(&self.buffer) }),
            };
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        match serde_json::from_slice(&line) {
            Ok(Message::Error { message }) => Err(TalkError::Peer(printable(&message, 2000))),
            Ok(message) => Ok(Some(message)),
            Err(_) => {
                Err(other_version(&line).unwrap_or(TalkError::Foreign { what: shown(&line) }))
            }
        }
    }
}

/// A greeting of ours, of a version that says more or less than this one understands.
fn other_version(line: &[u8]) -> Option<TalkError> {
    let value: serde_json::Value = serde_json::from_slice(line).ok()?;
    let theirs = value.get("protocol")?.as_u64()?;
    let version = value.get("version").and_then(|v| v.as_str()).unwrap_or("unknown version");
    (value.get("program")? == "ironverbs" && theirs != u64::from(PROTOCOL))
        .then(|| TalkError::Version { theirs, version: printable(version, 40) })
}

/// What this side says of itself.
pub(crate) fn hello() -> Message {
    Message::Hello {
        program: "ironverbs".to_owned(),
        protocol: PROTOCOL,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Checks what the other side said of itself.
pub(crate) fn check_greeting(program: &str, protocol: u32, version: &str) -> Result<(), TalkError> {
    if program != "ironverbs" {
        return Err(TalkError::Foreign { what: printable(program, 60) });
    }
    if protocol != PROTOCOL {
        return Err(TalkError::Version {
            theirs: protocol.into(),
            version: printable(version, 40),
        });
    }
    Ok(())
}

/// The start of what a peer said, safe for a terminal.
fn shown(bytes: &[u8]) -> String {
    format!("it said {:?}", printable(String::from_utf8_lossy(bytes).trim_end(), 60))
}

fn printable(text: &str, max: usize) -> String {
    let keep = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
    let mut out: String = text.chars().take(max).map(keep).collect();
    if text.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}
