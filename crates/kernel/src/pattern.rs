//! Patterns of driver tables: names of devices with `*`, `?` and `[...]`, as fnmatch(3) without flags knows them.

/// Whether the text is one that the pattern means.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (pattern, text);
    // Where the last `*` was, and the text that it has not taken yet.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let step = match p.split_first() {
            Some((b'*', rest)) => {
                star = Some((rest, t));
                p = rest;
                continue;
            }
            None if t.is_empty() => return true,
            None => None,
            Some(_) => one(p, t),
        };
        (p, t) = match (step, star) {
            (Some(next), _) => next,
            (None, Some((after, [_, rest @ ..]))) => {
                star = Some((after, rest));
                (after, rest)
            }
            (None, _) => return false,
        };
    }
}

/// What is left of both after one character, if it fits.
fn one<'a>(pattern: &'a [u8], text: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let (&c, text) = text.split_first()?;
    match pattern.split_first()? {
        (b'?', rest) => Some((rest, text)),
        (b'\\', [escaped, rest @ ..]) => (*escaped == c).then_some((rest, text)),
        (b'[', rest) => match set(rest, c) {
            Some((true, rest)) => Some((rest, text)),
            Some((false, _)) => None,
            // Without an end it is a bracket.
            None => (c == b'[').then_some((rest, text)),
        },
        (&literal, rest) => (literal == c).then_some((rest, text)),
    }
}

/// Whether the set that starts here has the character, and what follows it.
fn set(pattern: &[u8], c: u8) -> Option<(bool, &[u8])> {
    let (inverted, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (mut found, mut first) = (false, true);
    loop {
        rest = match rest {
            [b']', rest @ ..] if !first => return Some((found != inverted, rest)),
            [low, b'-', high, rest @ ..] if *high != b']' => {
                found |= (*low..=*high).contains(&c);
                rest
            }
            [single, rest @ ..] => {
                found |= *single == c;
                rest
            }
            [] => return None,
        };
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_of_drivers_match_their_devices() {
        let yes = [
            ("rdma_device:*Nrxe*", "rdma_device:Nrxe0"),
            ("pci:v000015B3d00001017sv*", "pci:v000015B3d00001017sv000015B3sd00000007bc02sc00i00"),
            ("*", ""),
            ("a*b*c", "a-b-b-c"),
            ("x[0-9a]?", "x7z"),
            ("x[!0-9]", "xa"),
            ("[", "["),
            ("\\*", "*"),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let no = [
            ("rdma_device:*Nsiw*", "rdma_device:Nrxe0"),
            ("a", ""),
            ("", "a"),
            ("a*b", "a-c"),
            ("x[!0-9]", "x5"),
            ("\\*", "a"),
        ];
        for (pattern, text) in no {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }
}
