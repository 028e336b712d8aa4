//! A value as it stands in a file or in a variable, and what can be made of it.

use std::net::IpAddr;

use toml::de::DeValue;

use super::{MAX_HOSTS, MAX_PKEYS};

/// A value as it stands in a file or in the environment.
pub(super) enum Raw<'a> {
    Text(&'a str),
    Toml(&'a DeValue<'a>),
}

impl Raw<'_> {
    pub(super) fn word(&self) -> Option<&str> {
        match self {
            Raw::Text(text) => Some(text),
            Raw::Toml(DeValue::String(text)) => Some(text),
            Raw::Toml(_) => None,
        }
    }

    pub(super) fn number(&self, min: u64, max: u64) -> Option<u64> {
        let value = match self {
            Raw::Text(text) => match text.strip_prefix("0x") {
                // from_str_radix takes a sign.
                Some(hex) if hex.starts_with('+') => return None,
                Some(hex) => u64::from_str_radix(hex, 16).ok()?,
                None => text.parse().ok()?,
            },
            Raw::Toml(DeValue::Integer(i)) => u64::from_str_radix(i.as_str(), i.radix()).ok()?,
            Raw::Toml(_) => return None,
        };
        (min..=max).contains(&value).then_some(value)
    }

    pub(super) fn number32(&self, min: u32, max: u32) -> Option<u32> {
        self.number(min.into(), max.into())?.try_into().ok()
    }

    pub(super) fn priority(&self) -> Option<Option<u8>> {
        match self.word() {
            Some("off") => Some(None),
            _ => Some(Some(self.number32(0, 15)?.try_into().ok()?)),
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self {
            Raw::Text("1" | "true" | "yes" | "on") => Some(true),
            Raw::Text("0" | "false" | "no" | "off") => Some(false),
            Raw::Toml(DeValue::Boolean(value)) => Some(*value),
            _ => None,
        }
    }

    /// Distinct addresses in ascending order.
    pub(super) fn addresses(&self) -> Option<Vec<IpAddr>> {
        let mut list: Vec<IpAddr> = match self {
            Raw::Text(text) => text.split(',').map(|a| a.trim().parse().ok()).collect(),
            Raw::Toml(DeValue::Array(array)) => array
                .iter()
                .map(|value| match value.get_ref() {
                    DeValue::String(text) => text.parse().ok(),
                    _ => None,
                })
                .collect(),
            Raw::Toml(_) => None,
        }?;
        let usable = |a: &IpAddr| !(a.is_unspecified() || a.is_multicast());
        list.sort_unstable();
        list.dedup();
        (list.len() <= MAX_HOSTS && list.iter().all(usable)).then_some(list)
    }

    /// P_Keys, hexadecimal in the variable. The partition 0 is none (IBA 10.9.1.1).
    pub(super) fn pkeys(&self) -> Option<Vec<u16>> {
        let list: Vec<u16> = match self {
            Raw::Text(text) => text
                .split(',')
                .map(|key| {
                    let key = key.trim();
                    u16::from_str_radix(key.strip_prefix("0x").unwrap_or(key), 16).ok()
                })
                .collect(),
            Raw::Toml(DeValue::Array(array)) => array
                .iter()
                .map(|value| Raw::Toml(value.get_ref()).number32(1, 0xffff)?.try_into().ok())
                .collect(),
            Raw::Toml(_) => None,
        }?;
        let sound = (1..=MAX_PKEYS).contains(&list.len()) && list.iter().all(|k| k & 0x7fff != 0);
        sound.then_some(list)
    }

    pub(super) fn names(&self) -> Option<Vec<String>> {
        let mut names = Vec::new();
        let mut add = |name: &str| {
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
            is_interface_name(name).then_some(())
        };
        match self {
            Raw::Text(text) => text.split(',').try_for_each(|name| add(name.trim()))?,
            Raw::Toml(DeValue::Array(array)) => {
                array.iter().try_for_each(|value| match value.get_ref() {
                    DeValue::String(name) => add(name),
                    _ => None,
                })?;
            }
            Raw::Toml(_) => return None,
        }
        Some(names)
    }
}

/// What the kernel takes as an interface's name (dev_valid_name: fewer than IFNAMSIZ bytes).
fn is_interface_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..")
        && name.len() < 16
        && !name.bytes().any(|b| b == b'/' || b == b':' || b.is_ascii_whitespace() || b == 0)
}

/// A device name has 63 bytes (IBV_SYSFS_NAME_MAX) and stands in paths.
pub(super) fn is_name_prefix(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
