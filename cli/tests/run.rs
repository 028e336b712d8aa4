//! `ironverbs run`: the program takes our place and finds the stack.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use support::*;

fn run(arguments: &[&str]) -> Command {
    let mut command = command(stage().join("bin/ironverbs"), &["run", "--"]);
    command.args(arguments).env("IRONVERBS_UDP_PORT", udp_port().to_string());
    command.env_remove("XDG_RUNTIME_DIR").env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
    command
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn the_status_is_the_programs() {
    for code in [0, 1, 42, 255] {
        finish(run(&["sh", "-c", &format!("exit {code}")])).failed_with(code);
    }
    let output = finish(run(&["sh", "-c", "kill -TERM $$"]));
    assert_eq!(output.status.signal(), Some(15));
    let output = finish(run(&["sh", "-c", "echo out; echo err >&2"])).ok();
    assert_eq!((output.out().as_str(), output.err().as_str()), ("out\n", "err\n"));
}

#[test]
fn the_process_is_the_same() {
    let child = Background::start(run(&["sh", "-c", "echo $$"]));
    let pid = child.id().to_string();
    assert_eq!(child.line(), pid);
}

#[test]
fn arguments_arrive_as_they_are() {
    let output = finish(run(&["printf", "%s|", "--help", "-x", "a b", "", "--"])).ok();
    assert_eq!(output.out(), "--help|-x|a b||--|");
    let mut plain = command(stage().join("bin/ironverbs"), &["run", "printf", "%s", "--json"]);
    plain.env("IRONVERBS_UDP_PORT", udp_port().to_string());
    assert_eq!(finish(plain).ok().out(), "--json");
}

#[test]
fn programs_that_cannot_be_run() {
    let scratch = Scratch::new("cannot");
    let plain = scratch.write("plain", "x");
    let script = scratch.write("script", "#!/no/such/interpreter\n");
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let path = |p: &std::path::Path| p.to_str().unwrap().to_owned();
    for (program, code, says) in [
        ("no-such-program".to_owned(), 127, "not found in PATH"),
        ("/no/such/program".to_owned(), 127, "not found"),
        ("/etc/hostname/x".to_owned(), 127, "not found"),
        (String::new(), 127, "empty name"),
        (path(&plain), 126, "not executable"),
        ("/".to_owned(), 126, "is a directory"),
        (path(&script), 126, "interpreter"),
    ] {
        let output = finish(run(&[&program])).failed_with(code);
        assert!(output.err().contains(says), "{program}: {}", output.err());
        assert!(output.err().starts_with("ironverbs: "), "{}", output.err());
    }
    let output = finish(command(stage().join("bin/ironverbs"), &["run"])).failed_with(2);
    assert!(output.err().contains("PROGRAM"), "{}", output.err());
}

#[test]
fn a_script_without_a_first_line_runs_in_the_shell_or_fails_clearly() {
    let scratch = Scratch::new("script");
    let script = scratch.write("script", "exit 7\n");
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let output = finish(run(&[script.to_str().unwrap()]));
    assert!(matches!(output.status.code(), Some(7 | 126)), "{:?}", output.status);
}

#[test]
fn the_view_is_what_the_library_reports() {
    let port = udp_port().to_string();
    let mut info = command(stage().join("bin/ironverbs"), &["info", "--json"]);
    info.env("IRONVERBS_UDP_PORT", &port);
    let info: serde_json::Value = serde_json::from_str(&finish(info).ok().out()).unwrap();
    let devices = info["devices"].as_array().unwrap();
    assert!(!devices.is_empty(), "every machine has a device, if only on lo");
    let cat = |path: String| {
        let mut command = run(&["cat", &path]);
        command.env("IRONVERBS_UDP_PORT", &port);
        finish(command).ok().out().trim_end().to_owned()
    };
    let list = finish(run(&["ls", "/sys/class/infiniband"])).ok().out();
    let names: Vec<&str> = devices.iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(list.lines().collect::<Vec<_>>(), names);
    for (index, device) in devices.iter().enumerate() {
        let name = device["name"].as_str().unwrap();
        let class = format!("/sys/class/infiniband/{name}");
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        assert_eq!(cat(format!("{class}/node_guid")), text(&device["node_guid"]));
        assert_eq!(cat(format!("{class}/fw_ver")), text(&device["fw_ver"]));
        assert_eq!(cat(format!("{class}/node_type")), "1: CA");
        let ibdev = format!("/sys/class/infiniband_verbs/uverbs{index}/ibdev");
        assert_eq!(cat(ibdev), name);
        let port = &device["ports"][0];
        let state = cat(format!("{class}/ports/1/state"));
        assert_eq!(state.split(": ").nth(1).unwrap(), text(&port["state"]));
        assert_eq!(cat(format!("{class}/ports/1/rate")), text(&port["rate"]));
        assert_eq!(cat(format!("{class}/ports/1/link_layer")), text(&port["link_layer"]));
        for gid in port["gids"].as_array().unwrap() {
            let index = &gid["index"];
            assert_eq!(cat(format!("{class}/ports/1/gids/{index}")), text(&gid["gid"]));
            assert_eq!(cat(format!("{class}/ports/1/gid_attrs/types/{index}")), "RoCE v2");
            let interface = cat(format!("{class}/ports/1/gid_attrs/ndevs/{index}"));
            assert_eq!(interface, text(&gid["interface"]));
            finish(run(&["test", "-d", &format!("{class}/device/net/{interface}/")])).ok();
        }
        let node = format!("/dev/infiniband/uverbs{index}");
        finish(run(&["sh", "-c", &format!("test -c {node} && exec 3<>{node}")])).ok();
    }
    assert_eq!(cat("/sys/class/infiniband_verbs/abi_version".to_owned()), "6");
}

/// A program built against libibverbs finds ours and the same devices.
#[test]
fn the_library_is_ours() {
    let scratch = Scratch::new("library");
    let source = "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n\
        int main(void)\n{\n\
        void *h = dlopen(\"libibverbs.so.1\", RTLD_NOW);\nif (!h) { puts(dlerror()); return 1; }\n\
        void *(*list)(int *) = (void *(*)(int *))dlsym(h, \"ibv_get_device_list\");\n\
        const char *(*name)(void *) = (const char *(*)(void *))dlsym(h, \"ibv_get_device_name\");\n\
        Dl_info info;\nif (!list || !name || !dladdr((void *)list, &info)) return 2;\n\
        int n = -1;\nvoid **devices = list(&n);\n\
        printf(\"%s\\n\", info.dli_fname);\n\
        for (int i = 0; i < n; i++) printf(\"%s\\n\", name(devices[i]));\nreturn 0;\n}\n";
    let program = scratch.compile("program", source, &["-ldl"]);
    let output = finish(run(&[program.to_str().unwrap()])).ok().out();
    let mut lines = output.lines();
    let library = fs::canonicalize(stage().join("lib/libibverbs.so.1")).unwrap();
    assert_eq!(fs::canonicalize(lines.next().unwrap()).unwrap(), library);
    let names = finish(run(&["ls", "/sys/class/infiniband"])).ok().out();
    assert_eq!(lines.collect::<Vec<_>>(), names.lines().collect::<Vec<_>>());
}

#[test]
fn the_environment_is_kept() {
    let mut command = run(&["sh", "-c", "echo $LD_PRELOAD; echo $LD_LIBRARY_PATH; echo $OTHER"]);
    command.env("LD_PRELOAD", "libm.so.6 libdl.so.2").env("LD_LIBRARY_PATH", "/x:/y");
    command.env("OTHER", "other");
    let lib = stage().join("lib").canonicalize().unwrap();
    let lib = lib.display();
    let expected =
        format!("libm.so.6 libdl.so.2 {lib}/libironverbs_paths.so\n{lib}:/x:/y\nother\n");
    assert_eq!(finish(command).ok().out(), expected);
}

#[test]
fn run_within_run_adds_nothing() {
    let inner = stage().join("bin/ironverbs");
    let script = "echo $LD_PRELOAD; echo $LD_LIBRARY_PATH; echo $IRONVERBS_VIEW";
    let once = finish(run(&["sh", "-c", script])).ok().out();
    let twice = finish(run(&[inner.to_str().unwrap(), "run", "--", "sh", "-c", script])).ok().out();
    let shape = |text: &str| text.lines().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(shape(&once), shape(&twice));
    let list = run(&[inner.to_str().unwrap(), "run", "--", "ls", "/sys/class/infiniband"]);
    assert_eq!(finish(list).ok().out(), finish(run(&["ls", "/sys/class/infiniband"])).ok().out());
}

#[test]
fn programs_that_will_not_see_the_stack_are_named() {
    let scratch = Scratch::new("blind");
    let fixed = scratch.compile("fixed", "int main(void) { return 5; }\n", &["-static"]);
    let output = finish(run(&[fixed.to_str().unwrap()])).failed_with(5);
    assert!(output.err().contains("statically linked"), "{}", output.err());
    let script = scratch.write("script", &format!("#!{}\n", fixed.display()));
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let output = finish(run(&[script.to_str().unwrap()])).failed_with(5);
    assert!(output.err().contains("statically linked"), "{}", output.err());
    let plain = scratch.compile("plain", "int main(void) { return 5; }\n", &[]);
    let output = finish(run(&[plain.to_str().unwrap()])).failed_with(5);
    assert_eq!(output.err(), "");
    if is_root() {
        std::os::unix::fs::chown(&plain, Some(65534), None).unwrap();
        fs::set_permissions(&plain, PermissionsExt::from_mode(0o4755)).unwrap();
        let output = finish(run(&[plain.to_str().unwrap()])).failed_with(5);
        assert!(output.err().contains("is setuid"), "{}", output.err());
    } else {
        // Of another user, and setuid, on every machine.
        let output = finish(run(&["su", "--version"]));
        assert!(output.err().contains("is setuid"), "{}", output.err());
    }
}

#[test]
fn sanitized_programs_run() {
    let scratch = Scratch::new("sanitized");
    let source = "#include <stdio.h>\nint main(void) { FILE *f = fopen(\"/sys/class/infiniband_verbs/abi_version\", \"r\");\n\
                  int c = f ? fgetc(f) : 'x'; return c == '6' ? 5 : 6; }\n";
    for sanitizer in ["address", "undefined", "thread"] {
        let flag = format!("-fsanitize={sanitizer}");
        let program = scratch.compile(sanitizer, source, &[&flag]);
        let mut command = run(&[program.to_str().unwrap()]);
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        finish(command).failed_with(5);
    }
}

#[test]
fn an_installation_without_its_libraries() {
    let scratch = Scratch::new("lib");
    let mut command = run(&["true"]);
    command.env("IRONVERBS_LIB_DIR", &scratch.0);
    let output = finish(command).failed_with(125);
    assert!(output.err().contains("libibverbs.so.1 is missing"), "{}", output.err());
    let mut command = run(&["true"]);
    command.env("IRONVERBS_LIB_DIR", scratch.0.join("nowhere"));
    let output = finish(command).failed_with(125);
    assert!(output.err().contains("nowhere"), "{}", output.err());
    let spaced = scratch.0.join("with space");
    fs::create_dir(&spaced).unwrap();
    for library in ["libibverbs.so.1", "libironverbs_paths.so"] {
        fs::write(spaced.join(library), "").unwrap();
    }
    let mut command = run(&["true"]);
    command.env("IRONVERBS_LIB_DIR", &spaced);
    let output = finish(command).failed_with(125);
    assert!(output.err().contains("with space"), "{}", output.err());
}

#[test]
fn wrong_configuration_is_named() {
    let mut command = run(&["true"]);
    command.env("IRONVERBS_TIMEOUT_SCALE", "never");
    let output = finish(command).failed_with(125);
    let text = output.err();
    assert!(text.contains("IRONVERBS_TIMEOUT_SCALE") && text.contains("never"), "{text}");
}

#[test]
fn without_our_devices_there_is_no_view() {
    let mut command = run(&["sh", "-c", "echo view=$IRONVERBS_VIEW"]);
    command.env("IRONVERBS_SOFT", "off").env("IRONVERBS_VIEW", "/stale");
    assert_eq!(finish(command).ok().out(), "view=\n");
}

#[test]
fn the_view_follows_the_configuration() {
    let mut command = run(&["ls", "/sys/class/infiniband"]);
    command.env("IRONVERBS_NAME_PREFIX", "mlx5_").env("IRONVERBS_INTERFACES", "lo");
    assert_eq!(finish(command).ok().out(), "mlx5_0\n");
    let mut command = run(&["cat", "/sys/class/infiniband/iron0/ports/1/gid_attrs/ndevs/0"]);
    command.env("IRONVERBS_INTERFACES", "lo");
    assert_eq!(finish(command).ok().out(), "lo\n");
    let mut command = run(&["ls", "/sys/class/infiniband"]);
    command.env("IRONVERBS_INTERFACES", "nosuch0");
    assert_eq!(finish(command).ok().out(), "");
}

#[test]
fn the_runtime_directory_is_used_if_it_is_ours_alone() {
    let scratch = Scratch::new("runtime");
    let view = |mode: u32| {
        fs::set_permissions(&scratch.0, PermissionsExt::from_mode(mode)).unwrap();
        let mut command = run(&["sh", "-c", "echo $IRONVERBS_VIEW"]);
        command.env("XDG_RUNTIME_DIR", &scratch.0);
        finish(command).ok().out()
    };
    assert!(view(0o777).starts_with("/tmp/ironverbs-"));
    let path = view(0o700);
    assert!(path.starts_with(scratch.0.to_str().unwrap()), "{path}");
    let mode = |path: &str| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(path.trim_end()), 0o700);
}

/// Another user prepares what we are about to use in /tmp. Needs root to be that user.
#[test]
fn prepared_directories_are_refused() {
    if !is_root() {
        // Nobody else's directory can be made then; the unit test of the checks runs for every user.
        return;
    }
    let scratch = Scratch::new("hostile");
    fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o777)).unwrap();
    let uid = 61_234_u32;
    let place = std::path::PathBuf::from(format!("/tmp/ironverbs-{uid}"));
    let _ = fs::remove_file(&place);
    let _ = fs::remove_dir_all(&place);
    let as_user = || {
        // The installation may lie where that user cannot go.
        let copy = scratch.0.join("install");
        if !copy.exists() {
            let status = Command::new("cp").arg("-rL").arg(stage()).arg(&copy).status().unwrap();
            assert!(status.success());
            for path in [copy.clone(), copy.join("bin"), copy.join("lib")] {
                fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        let mut command = command(copy.join("bin/ironverbs"), &["run", "--", "true"]);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        std::os::unix::process::CommandExt::gid(&mut command, uid);
        command.env_remove("IRONVERBS_CONFIG").env_remove("XDG_RUNTIME_DIR").env("HOME", "/");
        command.env("IRONVERBS_UDP_PORT", udp_port().to_string()).current_dir("/");
        finish(command)
    };
    std::os::unix::fs::symlink(&scratch.0, &place).unwrap();
    let output = as_user().failed_with(125);
    assert!(output.err().contains("symbolic link"), "{}", output.err());
    fs::remove_file(&place).unwrap();
    fs::create_dir(&place).unwrap();
    let output = as_user().failed_with(125);
    assert!(output.err().contains("belongs to uid 0"), "{}", output.err());
    std::os::unix::fs::chown(&place, Some(uid), Some(uid)).unwrap();
    fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
    let output = as_user().failed_with(125);
    assert!(output.err().contains("others may enter"), "{}", output.err());
    fs::remove_dir(&place).unwrap();
    as_user().ok();
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn many_at_once() {
    let scratch = Scratch::new("many");
    fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o700)).unwrap();
    let start = |i: usize| {
        let mut command = run(&["cat", "/sys/class/infiniband_verbs/abi_version"]);
        command.env("XDG_RUNTIME_DIR", &scratch.0);
        // Two views, so that one appears while others are in use.
        command.env("IRONVERBS_NAME_PREFIX", ["iron", "steel"][i % 2]);
        Background::start(command)
    };
    let running: Vec<Background> = (0..16).map(start).collect();
    for one in running {
        assert_eq!(one.wait().ok().out(), "6\n");
    }
    let left = fs::read_dir(scratch.0.join("ironverbs")).unwrap().count();
    assert_eq!(left, 2, "one directory for each view");
}

/// The membership of a process that is about to become the program must not stay behind.
#[test]
fn run_itself_joins_no_group() {
    let port = udp_port().to_string();
    let mut sleeper = run(&["sleep", "100"]);
    sleeper.env("IRONVERBS_UDP_PORT", &port);
    let _sleeper = Background::start(sleeper);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut info = command(stage().join("bin/ironverbs"), &["info", "--json"]);
    info.env("IRONVERBS_UDP_PORT", &port);
    let info: serde_json::Value = serde_json::from_str(&finish(info).ok().out()).unwrap();
    assert_eq!(info["members"].as_array().unwrap().len(), 1);
}
