use super::*;
use std::sync::atomic::{AtomicU32, Ordering};

fn vars(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    list.iter().map(|(n, v)| (n.into(), v.into())).collect()
}

fn with_env(list: &[(&str, &str)]) -> Result<Config, String> {
    // A file of its own keeps the machine's /etc/ironverbs.toml out.
    with_file("", list)
}

fn with_file(text: &str, list: &[(&str, &str)]) -> Result<Config, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ironverbs-{}-{n}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let mut list = vars(list);
    list.push(("IRONVERBS_CONFIG".into(), path.clone().into()));
    let result = Config::from_environment(list);
    std::fs::remove_file(&path).unwrap();
    result.map_err(|e| e.to_string().replace(path.to_str().unwrap(), "FILE"))
}

#[test]
fn empty_is_default() {
    assert_eq!(with_env(&[]).unwrap(), Config::default());
    assert_eq!(with_env(&[("IRONVERBS_UDP_PORT", "")]).unwrap(), Config::default());
}

#[test]
fn environment_over_file_over_default() {
    let file =
        "udp_port = 5000\nvendor_id = 0x2c9\ninterfaces = [\"eth0\", \"lo\"]\nexplain = true\n";
    let c = with_file(file, &[("IRONVERBS_UDP_PORT", "6000")]).unwrap();
    assert_eq!(c.udp_port.value, 6000);
    assert_eq!(c.udp_port.source, Source::Env("IRONVERBS_UDP_PORT"));
    assert_eq!(c.vendor_id.value, 0x2c9);
    assert!(matches!(c.vendor_id.source, Source::File(_)));
    assert_eq!(c.interfaces.value, ["eth0", "lo"]);
    assert!(c.explain.value);
    assert_eq!(c.soft.source, Source::Default);
    assert_eq!(c.soft.value, Soft::Also);
}

#[test]
fn every_variable_is_read_back_from_entries() {
    let list = [
        ("IRONVERBS_SOFT", "only"),
        ("IRONVERBS_KERNEL_DRIVER", "plugin"),
        ("IRONVERBS_PREFER", "software"),
        ("IRONVERBS_INTERFACES", "a,b"),
        ("IRONVERBS_NAME_PREFIX", "mlx5_"),
        ("IRONVERBS_VENDOR_ID", "0x2c9"),
        ("IRONVERBS_VENDOR_PART_ID", "0x1017"),
        ("IRONVERBS_UDP_PORT", "4792"),
        ("IRONVERBS_TIMEOUT_SCALE", "100"),
        ("IRONVERBS_PATH", "wire"),
        ("IRONVERBS_SAFE_COPY", "true"),
        ("IRONVERBS_ONESIDED", "kernel"),
        ("IRONVERBS_LINK_LAYER", "InfiniBand"),
        ("IRONVERBS_HOSTS", "10.0.0.1,10.0.0.2"),
        ("IRONVERBS_SUBNET_PREFIX", "0xfe80000000001234"),
        ("IRONVERBS_LMC", "2"),
        ("IRONVERBS_PKEYS", "0xffff,0x8001,0x0002"),
        ("IRONVERBS_SUBNET_MANAGER", "9"),
        ("IRONVERBS_M_KEY", "0x1234"),
        ("IRONVERBS_EXPLAIN", "true"),
    ];
    let entries = with_env(&list).unwrap().entries();
    assert_eq!(entries.len(), list.len());
    for (entry, (variable, value)) in entries.iter().zip(list) {
        // A secret is not shown.
        let value = if variable == "IRONVERBS_M_KEY" { "(set)" } else { value };
        assert_eq!((entry.variable, entry.value.as_str()), (variable, value));
        assert_eq!(entry.source, Source::Env(variable));
        assert_eq!(entry.variable, format!("IRONVERBS_{}", entry.key.to_uppercase()));
    }
}

#[test]
fn internal_variables_are_no_settings() {
    for name in INTERNAL.iter().filter(|n| **n != "IRONVERBS_CONFIG") {
        with_env(&[(name, "x")]).unwrap();
    }
    for name in ["IRONVERBS_TEST_STAGE", "IRONVERBS_BENCH_SECONDS"] {
        with_env(&[(name, "x")]).unwrap();
    }
}

#[test]
fn wrong_variables_are_named() {
    for (name, value, expected) in [
        (
            "IRONVERBS_UDP_PORT",
            "70000",
            "environment: IRONVERBS_UDP_PORT=\"70000\": expected an integer from 1 to 65535",
        ),
        ("IRONVERBS_UDP_PORT", "-1", "expected an integer from 1"),
        ("IRONVERBS_UDP_PORT", "0x+1", "expected an integer from 1"),
        ("IRONVERBS_SOFT", "on", "IRONVERBS_SOFT=\"on\": expected \"also\", \"only\" or \"off\""),
        ("IRONVERBS_KERNEL_DRIVER", "rxe", "expected \"own\" or \"plugin\""),
        ("IRONVERBS_PREFER", "soft", "expected \"kernel\" or \"software\""),
        ("IRONVERBS_INTERFACES", "eth0,,lo", "names of network interfaces"),
        ("IRONVERBS_INTERFACES", "averyverylongname", "names of network interfaces"),
        ("IRONVERBS_NAME_PREFIX", "../x", "a letter first"),
        ("IRONVERBS_EXPLAIN", "maybe", "true or false"),
        ("IRONVERBS_TIMEOUT_SCALE", "0", "from 1 to"),
        (
            "IRONVERBS_UDPPORT",
            "1",
            "unknown variable IRONVERBS_UDPPORT (did you mean IRONVERBS_UDP_PORT?)",
        ),
        ("IRONVERBS_QUUX", "1", "unknown variable IRONVERBS_QUUX"),
    ] {
        let error = with_env(&[(name, value)]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn wrong_files_are_named_with_line_key_and_value() {
    for (text, expected) in [
        ("\nudp_port = \"x\"\n", "FILE:2: udp_port = \"x\": expected an integer from 1 to 65535"),
        ("udp_port = 0", "FILE:1: udp_port = 0: expected"),
        ("udp_port = 18446744073709551617", "expected an integer"),
        ("soft = true", "FILE:1: soft = true: expected"),
        ("interfaces = \"eth0\"", "expected names"),
        ("interfaces = [1]", "expected names"),
        ("explain = 1", "expected true or false"),
        ("# c\n\nudp_prot = 1", "FILE:3: unknown key \"udp_prot\" (did you mean udp_port?)"),
        ("[udp_port]\nx = 1", "FILE:1: udp_port = "),
        ("soft = \"only\"\nsoft = \"off\"", "FILE:2: "),
        ("soft = ", "FILE:1: "),
    ] {
        let error = with_file(text, &[]).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn a_named_file_must_be_readable() {
    for path in ["/nonexistent/ironverbs.toml", "/dev/zero", "/"] {
        let error = Config::from_environment(vars(&[("IRONVERBS_CONFIG", path)])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(path) && text.contains("IRONVERBS_CONFIG"), "{text}");
    }
}

#[test]
fn the_users_file_is_found() {
    let home = std::env::temp_dir().join(format!("ironverbs-home-{}", std::process::id()));
    std::fs::create_dir_all(home.join(".config")).unwrap();
    std::fs::write(home.join("ironverbs.toml"), "udp_port = 1").unwrap();
    std::fs::write(home.join(".config/ironverbs.toml"), "udp_port = 2").unwrap();
    let dir = home.to_str().unwrap();
    let port = |list: &[(&str, &str)]| Config::from_environment(vars(list)).unwrap().udp_port.value;
    assert_eq!(port(&[("HOME", dir)]), 2);
    assert_eq!(port(&[("HOME", "/"), ("XDG_CONFIG_HOME", dir)]), 1);
    assert_eq!(port(&[("HOME", dir), ("XDG_CONFIG_HOME", "relative")]), 2);
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn control_characters_never_reach_the_terminal() {
    let error = with_env(&[("IRONVERBS_SOFT", "\u{1b}[31mred")]).unwrap_err();
    assert!(!error.contains('\u{1b}'), "{error:?}");
}

#[test]
fn a_subnet_in_a_file() {
    let file = "link_layer = \"InfiniBand\"\nhosts = [\"10.0.0.9\", \"10.0.0.1\", \"10.0.0.9\"]\npkeys = [0xffff, 0x7fff]\n";
    let c = with_file(file, &[]).unwrap();
    assert_eq!(c.link_layer.value, Links::InfiniBand);
    assert_eq!(c.hosts.value, ["10.0.0.1", "10.0.0.9"].map(|a| a.parse::<IpAddr>().unwrap()));
    assert_eq!(c.pkeys.value, [0xffff, 0x7fff]);
    for bad in [
        ("IRONVERBS_HOSTS", "10.0.0.1,"),
        ("IRONVERBS_HOSTS", "224.0.0.1"),
        ("IRONVERBS_PKEYS", "0x8000"),
        ("IRONVERBS_PKEYS", "0x10000"),
        ("IRONVERBS_LMC", "8"),
        ("IRONVERBS_LINK_LAYER", "infiniband"),
        ("IRONVERBS_SUBNET_PREFIX", "0"),
        ("IRONVERBS_SUBNET_MANAGER", "16"),
        ("IRONVERBS_SUBNET_MANAGER", "on"),
        ("IRONVERBS_M_KEY", "secret"),
    ] {
        with_env(&[bad]).unwrap_err();
    }
}
