//! The configuration: `IRONVERBS_*` variables over one TOML file over the defaults.
//!
//! The file is `$IRONVERBS_CONFIG` where that is set, else the first that exists of
//! `$XDG_CONFIG_HOME/ironverbs.toml` (`~/.config/ironverbs.toml` without `XDG_CONFIG_HOME`) and
//! `/etc/ironverbs.toml`. A variable that is set but empty counts as not set. Every value carries
//! where it came from, and everything that is not understood is an error that says where it stands.

mod choice;
mod raw;

pub use self::choice::{DataPath, KernelDriver, Links, OneSided, Prefer, Soft};

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use self::raw::{Raw, is_name_prefix};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// This file.
    File(PathBuf),
    /// This environment variable.
    Env(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Env(name) => f.write_str(name),
        }
    }
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value in force.
    pub value: T,
    /// Where it came from.
    pub source: Source,
}

impl<T> Setting<T> {
    fn default(value: T) -> Setting<T> {
        Setting { value, source: Source::Default }
    }
}

/// The configuration in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which devices a program sees.
    pub soft: Setting<Soft>,
    /// What drives devices of the kernel for which this library has a data path.
    pub kernel_driver: Setting<KernelDriver>,
    /// Whose device an address stands for in the connection manager, where both have one with it.
    pub prefer: Setting<Prefer>,
    /// Interfaces that get a device; empty stands for the rule of the default (every one that is
    /// up and has an address).
    pub interfaces: Setting<Vec<String>>,
    /// What device names begin with; a number follows.
    pub name_prefix: Setting<String>,
    /// `vendor_id` of the devices, 24 bits.
    pub vendor_id: Setting<u32>,
    /// `vendor_part_id` of the devices.
    pub vendor_part_id: Setting<u32>,
    /// UDP port of RoCEv2.
    pub udp_port: Setting<u16>,
    /// Factor on every transport timer, for peers stopped in a debugger.
    pub timeout_scale: Setting<u32>,
    /// How data reaches a peer on the same host.
    pub path: Setting<DataPath>,
    /// Whether the kernel copies to and from registered memory: safe also in threads that block
    /// SIGSEGV or SIGBUS, where a program takes memory away under a region; slower.
    pub safe_copy: Setting<bool>,
    /// Whether an initiator carries out one-sided operations to a peer on the same host by itself.
    pub onesided: Setting<OneSided>,
    /// What kind of links the devices have.
    pub link_layer: Setting<Links>,
    /// On InfiniBand links: addresses of the ports of the subnet, one of each, in ascending order; the same list
    /// on every host. Empty: the subnet is this host.
    pub hosts: Setting<Vec<IpAddr>>,
    /// On InfiniBand links: the upper half of the ports' GIDs.
    pub subnet_prefix: Setting<u64>,
    /// On InfiniBand links: every port has two to this power of LIDs.
    pub lmc: Setting<u8>,
    /// On InfiniBand links: the P_Key table of the ports; in keys of full members the top bit is set.
    pub pkeys: Setting<Vec<u16>>,
    /// On InfiniBand links: the priority of the subnet manager that one process of this host runs, 0 to 15; None: none
    /// runs it.
    pub subnet_manager: Setting<Option<u8>>,
    /// On InfiniBand links: the M_Key of the ports, which who manages the subnet must know to change them; 0: none. The same
    /// on every host.
    pub m_key: Setting<u64>,
    /// Explain every failing verb on stderr.
    pub explain: Setting<bool>,
}

/// Ports that a subnet can have (`hosts`).
pub const MAX_HOSTS: usize = 254;
/// Entries of the P_Key table (`pkeys`).
pub const MAX_PKEYS: usize = 32;

impl Default for Config {
    fn default() -> Config {
        Config {
            soft: Setting::default(Soft::Also),
            kernel_driver: Setting::default(KernelDriver::Own),
            prefer: Setting::default(Prefer::Kernel),
            interfaces: Setting::default(Vec::new()),
            name_prefix: Setting::default("iron".to_owned()),
            // "IRV". The group bit of its first octet is set, so that no maker can own it and no
            // program's rule for some adapter matches.
            vendor_id: Setting::default(0x49_52_56),
            vendor_part_id: Setting::default(1),
            udp_port: Setting::default(4791),
            timeout_scale: Setting::default(1),
            path: Setting::default(DataPath::Auto),
            safe_copy: Setting::default(false),
            onesided: Setting::default(OneSided::Auto),
            link_layer: Setting::default(Links::Ethernet),
            hosts: Setting::default(Vec::new()),
            // The default prefix of IBA 4.1.1.
            subnet_prefix: Setting::default(0xfe80 << 48),
            lmc: Setting::default(0),
            pkeys: Setting::default(vec![0xffff]),
            subnet_manager: Setting::default(Some(0)),
            m_key: Setting::default(0),
            explain: Setting::default(false),
        }
    }
}

/// One setting, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key in a file.
    pub key: &'static str,
    /// Its environment variable.
    pub variable: &'static str,
    /// What it may be.
    pub expected: &'static str,
    /// The value, as it would stand in a variable.
    pub value: String,
    /// Where that came from.
    pub source: Source,
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("{path}: {error}{named}", path = path.display(),
            named = if *named { " (named by IRONVERBS_CONFIG)" } else { "" })]
    Read {
        /// The file.
        path: PathBuf,
        /// Whether `IRONVERBS_CONFIG` asked for it.
        named: bool,
        /// Why.
        error: io::Error,
    },
    /// A file is not TOML.
    #[error("{}:{line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What the parser found.
        message: String,
    },
    /// A file has a key that is no setting.
    #[error("{}:{line}: unknown key \"{key}\"{}", path.display(), suggestion(nearest))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// The setting that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A variable begins with `IRONVERBS_` and is no setting.
    #[error("environment: unknown variable {name}{}", suggestion(nearest))]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The setting that was probably meant.
        nearest: Option<&'static str>,
    },
    /// A value in a file is not allowed.
    #[error("{}:{line}: {key} = {value}: expected {expected}", path.display())]
    FileValue {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The setting.
        key: &'static str,
        /// The value as it stands there.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// A value in the environment is not allowed.
    #[error("environment: {variable}={value:?}: expected {expected}")]
    EnvValue {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
}

fn suggestion(nearest: &Option<&str>) -> String {
    nearest.map(|n| format!(" (did you mean {n}?)")).unwrap_or_default()
}

impl Config {
    /// Reads the environment and the configuration file.
    ///
    /// # Errors
    /// [`ConfigError`]: a file that cannot be read or parsed, a value out of range, a key or an
    /// `IRONVERBS_*` variable that does not exist.
    pub fn load() -> Result<Config, ConfigError> {
        Config::from_environment(std::env::vars_os())
    }

    /// As [`load`](Config::load), with these variables in place of the process's own.
    ///
    /// # Errors
    /// As [`load`](Config::load).
    pub fn from_environment(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Config, ConfigError> {
        let variables: Vec<(String, OsString)> = variables
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect();
        let mut config = Config::default();
        if let Some((path, text)) = read_file(&variables)? {
            config.apply_file(&path, &text)?;
        }
        config.apply_variables(&variables)?;
        Ok(config)
    }

    /// Every setting in the order of the manual.
    pub fn entries(&self) -> Vec<Entry> {
        SETTINGS
            .iter()
            .map(|s| {
                let (value, source) = (s.show)(self);
                let Spec { key, variable, expected, .. } = *s;
                Entry { key, variable, expected, value, source: source.clone() }
            })
            .collect()
    }

    fn apply_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let line = |offset: usize| {
            let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
            1 + before.iter().filter(|&&b| b == b'\n').count()
        };
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: line(error.span().map_or(0, |s| s.start)),
            message: error.message().to_owned(),
        })?;
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            let Some(setting) = SETTINGS.iter().find(|s| s.key == name) else {
                return Err(ConfigError::UnknownKey {
                    path: path.to_owned(),
                    line: line(key.span().start),
                    key: shortened(name),
                    nearest: nearest(name, SETTINGS.iter().map(|s| s.key)),
                });
            };
            let source = Source::File(path.to_owned());
            if (setting.put)(self, Raw::Toml(value.get_ref()), source).is_none() {
                return Err(ConfigError::FileValue {
                    path: path.to_owned(),
                    line: line(value.span().start),
                    key: setting.key,
                    value: shortened(text.get(value.span()).unwrap_or_default()),
                    expected: setting.expected,
                });
            }
        }
        Ok(())
    }

    fn apply_variables(&mut self, variables: &[(String, OsString)]) -> Result<(), ConfigError> {
        for (name, value) in variables {
            if !name.starts_with(PREFIX) || is_internal(name) {
                continue;
            }
            let Some(setting) = SETTINGS.iter().find(|s| s.variable == name) else {
                return Err(ConfigError::UnknownVariable {
                    name: shortened(name),
                    nearest: nearest(name, SETTINGS.iter().map(|s| s.variable)),
                });
            };
            let source = Source::Env(setting.variable);
            let done =
                value.to_str().and_then(|v| (setting.put)(self, Raw::Text(v.trim()), source));
            if done.is_none() {
                return Err(ConfigError::EnvValue {
                    variable: setting.variable,
                    value: shortened(&value.to_string_lossy()),
                    expected: setting.expected,
                });
            }
        }
        Ok(())
    }
}

const PREFIX: &str = "IRONVERBS_";

/// Variables with our prefix that steer the command and the libraries and are no settings.
const INTERNAL: &[&str] = &[
    "IRONVERBS_CONFIG",
    "IRONVERBS_LIB_DIR",
    "IRONVERBS_SEED",
    "IRONVERBS_SEEDS",
    "IRONVERBS_VIEW",
];

/// Tests and benches hand things to the programs that they start.
const INTERNAL_PREFIXES: &[&str] = &["IRONVERBS_TEST", "IRONVERBS_BENCH"];

/// Whether a variable with our prefix is passed over by [`Config::load`].
fn is_internal(name: &str) -> bool {
    INTERNAL.contains(&name) || INTERNAL_PREFIXES.iter().any(|p| name.starts_with(p))
}

struct Spec {
    key: &'static str,
    variable: &'static str,
    expected: &'static str,
    put: fn(&mut Config, Raw<'_>, Source) -> Option<()>,
    show: fn(&Config) -> (String, &Source),
}

fn put<T>(setting: &mut Setting<T>, value: Option<T>, source: Source) -> Option<()> {
    *setting = Setting { value: value?, source };
    Some(())
}

const SETTINGS: &[Spec] = &[
    Spec {
        key: "soft",
        variable: "IRONVERBS_SOFT",
        expected: "\"also\", \"only\" or \"off\"",
        put: |c, raw, s| put(&mut c.soft, raw.word().and_then(Soft::parse), s),
        show: |c| (c.soft.value.as_str().to_owned(), &c.soft.source),
    },
    Spec {
        key: "kernel_driver",
        variable: "IRONVERBS_KERNEL_DRIVER",
        expected: "\"own\" or \"plugin\"",
        put: |c, raw, s| put(&mut c.kernel_driver, raw.word().and_then(KernelDriver::parse), s),
        show: |c| (c.kernel_driver.value.as_str().to_owned(), &c.kernel_driver.source),
    },
    Spec {
        key: "prefer",
        variable: "IRONVERBS_PREFER",
        expected: "\"kernel\" or \"software\"",
        put: |c, raw, s| put(&mut c.prefer, raw.word().and_then(Prefer::parse), s),
        show: |c| (c.prefer.value.as_str().to_owned(), &c.prefer.source),
    },
    Spec {
        key: "interfaces",
        variable: "IRONVERBS_INTERFACES",
        expected: "names of network interfaces (1 to 15 bytes each; a list in a file, separated by commas in the variable)",
        put: |c, raw, s| put(&mut c.interfaces, raw.names(), s),
        show: |c| (c.interfaces.value.join(","), &c.interfaces.source),
    },
    Spec {
        key: "name_prefix",
        variable: "IRONVERBS_NAME_PREFIX",
        expected: "1 to 32 letters, digits, \"_\" or \"-\", a letter first",
        put: |c, raw, s| {
            let name = raw.word().filter(|w| is_name_prefix(w)).map(str::to_owned);
            put(&mut c.name_prefix, name, s)
        },
        show: |c| (c.name_prefix.value.clone(), &c.name_prefix.source),
    },
    Spec {
        key: "vendor_id",
        variable: "IRONVERBS_VENDOR_ID",
        expected: "an integer from 0 to 0xffffff",
        put: |c, raw, s| put(&mut c.vendor_id, raw.number32(0, 0xff_ffff), s),
        show: |c| (format!("{:#x}", c.vendor_id.value), &c.vendor_id.source),
    },
    Spec {
        key: "vendor_part_id",
        variable: "IRONVERBS_VENDOR_PART_ID",
        expected: "an integer from 0 to 0xffffffff",
        put: |c, raw, s| put(&mut c.vendor_part_id, raw.number32(0, u32::MAX), s),
        show: |c| (format!("{:#x}", c.vendor_part_id.value), &c.vendor_part_id.source),
    },
    Spec {
        key: "udp_port",
        variable: "IRONVERBS_UDP_PORT",
        expected: "an integer from 1 to 65535",
        put: |c, raw, s| {
            let port = raw.number32(1, 65535).and_then(|n| n.try_into().ok());
            put(&mut c.udp_port, port, s)
        },
        show: |c| (c.udp_port.value.to_string(), &c.udp_port.source),
    },
    Spec {
        key: "timeout_scale",
        variable: "IRONVERBS_TIMEOUT_SCALE",
        expected: "an integer from 1 to 1000000",
        put: |c, raw, s| put(&mut c.timeout_scale, raw.number32(1, 1_000_000), s),
        show: |c| (c.timeout_scale.value.to_string(), &c.timeout_scale.source),
    },
    Spec {
        key: "path",
        variable: "IRONVERBS_PATH",
        expected: "\"auto\" or \"wire\"",
        put: |c, raw, s| put(&mut c.path, raw.word().and_then(DataPath::parse), s),
        show: |c| (c.path.value.as_str().to_owned(), &c.path.source),
    },
    Spec {
        key: "safe_copy",
        variable: "IRONVERBS_SAFE_COPY",
        expected: "true or false (1 or 0 in the variable)",
        put: |c, raw, s| put(&mut c.safe_copy, raw.flag(), s),
        show: |c| (c.safe_copy.value.to_string(), &c.safe_copy.source),
    },
    Spec {
        key: "onesided",
        variable: "IRONVERBS_ONESIDED",
        expected: "\"auto\", \"kernel\" or \"off\"",
        put: |c, raw, s| put(&mut c.onesided, raw.word().and_then(OneSided::parse), s),
        show: |c| (c.onesided.value.as_str().to_owned(), &c.onesided.source),
    },
    Spec {
        key: "link_layer",
        variable: "IRONVERBS_LINK_LAYER",
        expected: "\"Ethernet\" or \"InfiniBand\"",
        put: |c, raw, s| put(&mut c.link_layer, raw.word().and_then(Links::parse), s),
        show: |c| (c.link_layer.value.as_str().to_owned(), &c.link_layer.source),
    },
    Spec {
        key: "hosts",
        variable: "IRONVERBS_HOSTS",
        expected: "at most 254 unicast IP addresses (a list in a file, separated by commas in the variable)",
        put: |c, raw, s| put(&mut c.hosts, raw.addresses(), s),
        show: |c| {
            let list: Vec<String> = c.hosts.value.iter().map(IpAddr::to_string).collect();
            (list.join(","), &c.hosts.source)
        },
    },
    Spec {
        key: "subnet_prefix",
        variable: "IRONVERBS_SUBNET_PREFIX",
        expected: "an integer from 1 to 0xfeffffffffffffff (of 63 bits in a file)",
        put: |c, raw, s| put(&mut c.subnet_prefix, raw.number(1, 0xfeff_ffff_ffff_ffff), s),
        show: |c| (format!("{:#018x}", c.subnet_prefix.value), &c.subnet_prefix.source),
    },
    Spec {
        key: "lmc",
        variable: "IRONVERBS_LMC",
        expected: "an integer from 0 to 7",
        put: |c, raw, s| put(&mut c.lmc, raw.number32(0, 7).and_then(|n| n.try_into().ok()), s),
        show: |c| (c.lmc.value.to_string(), &c.lmc.source),
    },
    Spec {
        key: "pkeys",
        variable: "IRONVERBS_PKEYS",
        expected: "1 to 32 P_Keys from 0x0001 to 0xffff other than 0x8000 (a list of integers in a file, hexadecimal and separated by commas in the variable)",
        put: |c, raw, s| put(&mut c.pkeys, raw.pkeys(), s),
        show: |c| {
            let list: Vec<String> = c.pkeys.value.iter().map(|k| format!("{k:#06x}")).collect();
            (list.join(","), &c.pkeys.source)
        },
    },
    Spec {
        key: "subnet_manager",
        variable: "IRONVERBS_SUBNET_MANAGER",
        expected: "a priority from 0 to 15, or \"off\"",
        put: |c, raw, s| put(&mut c.subnet_manager, raw.priority(), s),
        show: |c| {
            let priority = c.subnet_manager.value;
            (priority.map_or("off".to_owned(), |p| p.to_string()), &c.subnet_manager.source)
        },
    },
    Spec {
        key: "m_key",
        variable: "IRONVERBS_M_KEY",
        expected: "an integer of 64 bits (63 in a file)",
        put: |c, raw, s| put(&mut c.m_key, raw.number(0, u64::MAX), s),
        show: |c| {
            // It is a secret of those who manage the subnet.
            let shown = if c.m_key.value == 0 { "0" } else { "(set)" };
            (shown.to_owned(), &c.m_key.source)
        },
    },
    Spec {
        key: "explain",
        variable: "IRONVERBS_EXPLAIN",
        expected: "true or false (1 or 0 in the variable)",
        put: |c, raw, s| put(&mut c.explain, raw.flag(), s),
        show: |c| (c.explain.value.to_string(), &c.explain.source),
    },
];

/// No sensible file is larger; a wrong path (`/dev/zero`) then ends in an error.
const MAX_FILE: u64 = 256 * 1024;

fn read_file(variables: &[(String, OsString)]) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let variable = |name| variables.iter().find(|(n, _)| n == name).map(|(_, v)| PathBuf::from(v));
    if let Some(path) = variable("IRONVERBS_CONFIG") {
        return match read_text(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) => Err(ConfigError::Read { path, named: true, error }),
        };
    }
    // The base directory specification: a relative XDG_CONFIG_HOME is to be ignored.
    let user = variable("XDG_CONFIG_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| variable("HOME").filter(|p| p.is_absolute()).map(|p| p.join(".config")))
        .map(|p| p.join("ironverbs.toml"));
    for path in user.into_iter().chain([PathBuf::from("/etc/ironverbs.toml")]) {
        match read_text(&path) {
            Ok(text) => return Ok(Some((path, text))),
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            // Another user's home, as after su: not ours to read.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && !path.starts_with("/etc") => {}
            Err(error) => return Err(ConfigError::Read { path, named: false, error }),
        }
    }
    Ok(None)
}

fn read_text(path: &Path) -> io::Result<String> {
    // Opening a FIFO would wait for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other("larger than 256 KiB"));
    }
    Ok(text)
}

fn shortened(text: &str) -> String {
    const MAX: usize = 80;
    let line = text.lines().next().unwrap_or_default();
    let cut: String =
        line.chars().take(MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
    if cut.len() < text.trim_end().len() { cut + "…" } else { cut }
}

/// The candidate that differs from `name` by a few letters.
fn nearest(name: &str, candidates: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    if name.len() > 64 {
        return None;
    }
    candidates
        .map(|c| (edit_distance(&name.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(distance, c)| *distance <= 1 + c.trim_start_matches(PREFIX).len() / 4)
        .min()
        .map(|(_, c)| c)
}

fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(b.bytes()) {
            let best = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            diagonal = *cell;
            *cell = best;
            left = best;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests;
