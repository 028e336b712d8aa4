//! Which paths are redirected, without a process to redirect.

#[path = "../src/rewrite.rs"]
mod rewrite;

use rewrite::{Outcome, PREFIXES, rewrite};

fn redirected(path: &str) -> Option<String> {
    let mut buffer = [0xff; 4096];
    match rewrite(path.as_bytes(), b"/V", &mut buffer) {
        Outcome::Pass => None,
        Outcome::Rewritten(len) => {
            assert_eq!(buffer[len], 0, "{path}: no NUL");
            Some(String::from_utf8(buffer[..len].to_vec()).unwrap())
        }
        Outcome::TooLong => panic!("{path}: too long"),
    }
}

#[test]
fn everything_within_a_prefix() {
    for prefix in PREFIXES {
        let prefix = std::str::from_utf8(prefix).unwrap();
        for tail in ["", "/", "/x", "/x/", "/x/y/z", "/..x", "/x../...", "/.hidden"] {
            assert_eq!(
                redirected(&format!("{prefix}{tail}")).unwrap(),
                format!("/V{prefix}{tail}")
            );
        }
    }
}

#[test]
fn nothing_else() {
    for path in [
        "",
        "/",
        ".",
        "/sys",
        "/sys/class",
        "/sys/class/",
        "/sys/class/net/eth0",
        "/sys/class/infiniband_cm",
        "/sys/class/infiniband_verbsx",
        "/sys/class/infiniban",
        "/sys/class/infinibandx/y",
        "/sys/classinfiniband",
        "/sys/infiniband",
        "/class/infiniband",
        "/dev/infinibandx",
        "/dev/null",
        "/dev",
        "/x/sys/class/infiniband",
        "/x/dev/infiniband",
        "sys/class/infiniband",
        "dev/infiniband/uverbs0",
        "./sys/class/infiniband",
        "/V/sys/class/infiniband",
        "/SYS/class/infiniband",
        // By name this would enter, but `net` holds links: only the kernel knows where it goes.
        "/sys/class/net/eth0/../infiniband",
    ] {
        assert_eq!(redirected(path), None, "{path}");
    }
}

#[test]
fn slashes_and_dots() {
    for (path, expected) in [
        ("//sys///class//infiniband//x", "/V/sys/class/infiniband/x"),
        ("/./sys/./class/./infiniband/./x/.", "/V/sys/class/infiniband/x/"),
        ("/sys/../sys/class/infiniband", "/V/sys/class/infiniband"),
        ("/../dev/infiniband", "/V/dev/infiniband"),
        ("/dev/../sys/class/../class/infiniband_mad", "/V/sys/class/infiniband_mad"),
        ("/sys/class/infiniband///", "/V/sys/class/infiniband/"),
        // Within the view the kernel resolves `..`, which knows what is a link.
        ("/sys/class/infiniband/iron0/..", "/V/sys/class/infiniband/iron0/.."),
        ("/sys/class/infiniband/a/b/../../c", "/V/sys/class/infiniband/a/b/../../c"),
    ] {
        assert_eq!(redirected(path).as_deref(), Some(expected), "{path}");
    }
}

#[test]
fn leaving_by_dots_names_the_real_place() {
    for (path, expected) in [
        ("/sys/class/infiniband/..", "/sys/class"),
        ("/sys/class/infiniband/../", "/sys/class"),
        ("/sys/class/infiniband/../net/eth0/", "/sys/class/net/eth0/"),
        ("/sys/class/infiniband/iron0/../../net/../x", "/sys/class/net/../x"),
        ("/sys/class/infiniband/../../..", "/"),
        ("/sys/class/infiniband/../../../etc/passwd", "/etc/passwd"),
        ("/dev/infiniband/..//null", "/dev/null"),
        ("/sys/class/infiniband/../infiniband_verbs/x", "/V/sys/class/infiniband_verbs/x"),
        ("/dev/infiniband/../../sys/class/infiniband/x", "/V/sys/class/infiniband/x"),
        ("/sys/class/infiniband/../infinibandx", "/sys/class/infinibandx"),
    ] {
        assert_eq!(redirected(path).as_deref(), Some(expected), "{path}");
    }
}

#[test]
fn what_does_not_fit_is_said_so() {
    let long = format!("/dev/infiniband/{}", "x".repeat(100));
    let fits = long.len() + "/V".len() + 1;
    for (size, expected) in
        [(0, Outcome::TooLong), (fits - 1, Outcome::TooLong), (fits, Outcome::Rewritten(fits - 1))]
    {
        assert_eq!(rewrite(long.as_bytes(), b"/V", &mut vec![0; size]), expected, "{size}");
    }
    let deep = format!("/dev/infiniband{}", "/x/..".repeat(100_000));
    assert_eq!(rewrite(deep.as_bytes(), b"/V", &mut [0; 4096]), Outcome::TooLong);
    // A detour that does not fit is forgotten once it is left.
    let detour = format!("/dev/infiniband/{}/../../null", "x".repeat(200));
    assert_eq!(rewrite(detour.as_bytes(), b"/V", &mut [0; 64]), Outcome::Rewritten(9));
}

/// Random paths of the interesting components never reach outside their buffer, and agree with a
/// slow and plain resolution by name.
#[test]
fn random_paths_against_a_model() {
    const PARTS: [&str; 10] =
        ["sys", "class", "dev", "infiniband", "infiniband_verbs", "..", ".", "", "x", "net"];
    let mut state = 0x9e37_79b9_u64;
    for _ in 0..200_000 {
        let mut path = String::new();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            path.push('/');
            path.push_str(PARTS[(state >> 33) as usize % PARTS.len()]);
        }
        let Some(result) = redirected(&path) else { continue };
        let resolve = |p: &str| {
            let mut stack: Vec<String> = Vec::new();
            for part in p.split('/') {
                match part {
                    "" | "." => {}
                    ".." => drop(stack.pop()),
                    name => stack.push(name.to_owned()),
                }
            }
            format!("/{}", stack.join("/"))
        };
        let (plain, got) = (resolve(&path), resolve(&result));
        let inside = PREFIXES.iter().any(|p| {
            let p = std::str::from_utf8(p).unwrap();
            plain == p || plain.starts_with(&format!("{p}/"))
        });
        // Once a component is left to the kernel, what follows it is too.
        if !result.starts_with("/V/") && inside {
            assert!(result.contains(".."), "{path} -> {result}");
            continue;
        }
        assert_eq!(got, if inside { format!("/V{plain}") } else { plain }, "{path} -> {result}");
    }
}
