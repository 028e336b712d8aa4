//! What the tests take from the distribution.

use crate::process::{Outcome, Program};
use std::path::Path;

/// Debian package, and a file it brings: a program by its name, anything else by its path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tool {
    package: &'static str,
    file: &'static str,
}

const fn tool(package: &'static str, file: &'static str) -> Tool {
    Tool { package, file }
}

pub(crate) const IBVERBS_UTILS: Tool = tool("ibverbs-utils", "ibv_devinfo");
pub(crate) const PERFTEST: Tool = tool("perftest", "ib_write_bw");
pub(crate) const LIBFABRIC: Tool = tool("libfabric-bin", "fi_info");
pub(crate) const UCX: Tool = tool("ucx-utils", "ucx_info");
pub(crate) const OPENMPI: Tool = tool("openmpi-bin", "mpirun.openmpi");
pub(crate) const OPENMPI_HEADERS: Tool = tool("libopenmpi-dev", "mpicc.openmpi");
pub(crate) const MPICH: Tool = tool("mpich", "mpirun.mpich");
pub(crate) const MPICH_HEADERS: Tool = tool("libmpich-dev", "mpicc.mpich");
pub(crate) const VENV: Tool = tool("python3-venv", "/usr/share/doc/python3-venv");
pub(crate) const NUMA: Tool = tool("libnuma1", "/usr/share/doc/libnuma1");
pub(crate) const CURL: Tool = tool("libcurl4", "/usr/share/doc/libcurl4");
pub(crate) const CMAKE: Tool = tool("cmake", "cmake");
pub(crate) const LIBNL: Tool = tool("libnl-route-3-dev", "/usr/share/doc/libnl-route-3-dev");
pub(crate) const MAN: Tool = tool("man-db", "man");
pub(crate) const PKGCONF: Tool = tool("pkgconf", "pkg-config");
pub(crate) const LIBCLANG: Tool = tool("libclang-dev", "/usr/share/doc/libclang-dev");
pub(crate) const FIO: Tool = tool("fio", "fio");
pub(crate) const RDMACM_UTILS: Tool = tool("rdmacm-utils", "rping");
pub(crate) const DIAGS: Tool = tool("infiniband-diags", "ibnetdiscover");
pub(crate) const OPENSM: Tool = tool("opensm", "opensm");
pub(crate) const QPERF: Tool = tool("qperf", "qperf");
pub(crate) const VERBS_HEADERS: Tool = tool("libibverbs-dev", "/usr/include/infiniband/verbs.h");
pub(crate) const CM_HEADERS: Tool = tool("librdmacm-dev", "/usr/include/rdma/rdma_cma.h");
pub(crate) const MAD_HEADERS: Tool = tool("libibmad-dev", "/usr/include/infiniband/mad.h");
pub(crate) const UMAD_HEADERS: Tool = tool("libibumad-dev", "/usr/include/infiniband/umad.h");
pub(crate) const TSHARK: Tool = tool("tshark", "tshark");
pub(crate) const IPROUTE: Tool = tool("iproute2", "ip");
pub(crate) const ETHTOOL: Tool = tool("ethtool", "ethtool");
pub(crate) const QEMU: Tool = tool("qemu-system-x86", "qemu-system-x86_64");
pub(crate) const BUSYBOX: Tool = tool("busybox-static", "/usr/share/doc/busybox-static");
pub(crate) const CPIO: Tool = tool("cpio", "cpio");
pub(crate) const KMOD: Tool = tool("kmod", "modprobe");
pub(crate) const CC: Tool = tool("gcc", "gcc");
pub(crate) const CXX: Tool = tool("g++", "g++");
pub(crate) const VALGRIND: Tool = tool("valgrind", "valgrind");
pub(crate) const SETPRIV: Tool = tool("util-linux", "setpriv");
pub(crate) const PYTHON: Tool = tool("python3", "/usr/bin/python3");
/// Debian's scapy, so the interpreter that goes with it is Debian's too: [`PYTHON`].
pub(crate) const SCAPY: Tool =
    tool("python3-scapy", "/usr/lib/python3/dist-packages/scapy/contrib/roce.py");

pub(crate) const PYVERBS: Tool =
    tool("python3-pyverbs", "/usr/share/doc/rdma-core/tests/test_qp.py.gz");

impl Tool {
    fn present(self) -> bool {
        if self.file.starts_with('/') { Path::new(self.file).exists() } else { on_path(self.file) }
    }
}

/// Whether a program of this name would be found.
pub(crate) fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Whether this process may install packages and make network namespaces.
pub(crate) fn is_root() -> bool {
    Program::new("id").arg("-u").read().is_ok_and(|user| user.trim() == "0")
}

/// Makes sure that all `tools` are there: installs what is missing where that is allowed, and
/// otherwise names it.
pub(crate) fn need(tools: &[Tool]) -> Outcome {
    let packages = missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    if is_root() && on_path("apt-get") {
        println!("installing {}", packages.join(" "));
        let apt = Program::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
        apt.clone().args(["update", "-qq"]).read()?;
        apt.args(["install", "-y", "-qq", "--no-install-recommends"]).args(&packages).read()?;
    }
    let packages = missing(tools);
    if packages.is_empty() {
        Ok(())
    } else {
        Err(format!("missing Debian packages: {}", packages.join(" ")).into())
    }
}

fn missing(tools: &[Tool]) -> Vec<&'static str> {
    let mut packages: Vec<_> =
        tools.iter().filter(|tool| !tool.present()).map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}
