//! What kind of program a file is, as far as preloading is concerned.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What the dynamic linker, or its absence, will make of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// Not ELF; the interpreter its first line names.
    pub(crate) interpreter: Option<PathBuf>,
    /// ELF without an interpreter: no dynamic linker runs, nothing is preloaded.
    pub(crate) is_static: bool,
    /// Built by the Go toolchain, whose runtime makes system calls without libc.
    pub(crate) is_go: bool,
    /// ELF for another machine or word size than ours.
    pub(crate) is_foreign: bool,
    /// The sanitizer runtimes it needs, which insist on being loaded first.
    pub(crate) sanitizers: Vec<String>,
}

/// Files larger than this many headers or bytes of tables are not believed.
const MAX_TABLE: u64 = 1 << 20;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

impl Program {
    /// Looks into `path`. A file that is neither ELF nor a script, or is damaged, gives the empty
    /// answer: exec will say what is wrong with it.
    pub(crate) fn examine(path: &Path) -> io::Result<Program> {
        let mut file = File::open(path)?;
        let mut start = [0; 256];
        let n = read_up_to(&mut file, &mut start)?;
        let start = start.get(..n).unwrap_or_default();
        if let Some(line) = start.strip_prefix(b"#!") {
            let line = line.split(|&b| b == b'\n').next().unwrap_or_default();
            let text = String::from_utf8_lossy(line);
            let interpreter = text.split_whitespace().next().map(PathBuf::from);
            return Ok(Program { interpreter, ..Program::default() });
        }
        if !start.starts_with(b"\x7fELF") {
            return Ok(Program::default());
        }
        Ok(Elf { file, start }.program().unwrap_or_default())
    }
}

fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while let Some(rest) = buffer.get_mut(n..).filter(|r| !r.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(read) => n += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

struct Elf<'a> {
    file: File,
    start: &'a [u8],
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

impl Elf<'_> {
    /// Fields are those of `<elf.h>`, `Elf64_*`.
    fn program(mut self) -> Option<Program> {
        let (class, data) = (*self.start.get(4)?, *self.start.get(5)?);
        let machine = number(self.start, 18, 2)?;
        let native = match std::env::consts::ARCH {
            "x86_64" => 62,
            "aarch64" => 183,
            "riscv64" => 243,
            _ => machine,
        };
        if class != 2 || data != 1 || machine != native {
            return Some(Program { is_foreign: true, ..Program::default() });
        }
        let (offset, entry, count) = (
            number(self.start, 32, 8)?,
            number(self.start, 54, 2)? as usize,
            number(self.start, 56, 2)? as usize,
        );
        let table = self.read(offset, (entry * count) as u64)?;
        let segments: Vec<Segment> = table
            .chunks_exact(entry.max(56))
            .filter_map(|h| {
                Some(Segment {
                    kind: number(h, 0, 4)? as u32,
                    offset: number(h, 8, 8)?,
                    address: number(h, 16, 8)?,
                    size: number(h, 32, 8)?,
                })
            })
            .collect();
        let is_go = segments.iter().filter(|s| s.kind == PT_NOTE).any(|s| {
            // A note is three u32 and the owner's name.
            self.read(s.offset, s.size.min(16)).is_some_and(|n| n.get(12..15) == Some(b"Go\0"))
        });
        Some(Program {
            is_static: !segments.iter().any(|s| s.kind == PT_INTERP),
            is_go,
            sanitizers: self.sanitizers(&segments).unwrap_or_default(),
            ..Program::default()
        })
    }

    fn sanitizers(&mut self, segments: &[Segment]) -> Option<Vec<String>> {
        let dynamic = segments.iter().find(|s| s.kind == PT_DYNAMIC)?;
        let table = self.read(dynamic.offset, dynamic.size)?;
        let entries: Vec<(u64, u64)> = table
            .chunks_exact(16)
            .filter_map(|e| Some((number(e, 0, 8)?, number(e, 8, 8)?)))
            .collect();
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB)?.1;
        let home = segments.iter().find(|s| {
            s.kind == PT_LOAD && strings.checked_sub(s.address).is_some_and(|o| o < s.size)
        })?;
        let strings = home.offset.checked_add(strings.checked_sub(home.address)?)?;
        let mut found = Vec::new();
        for (_, name) in entries.iter().filter(|(tag, _)| *tag == DT_NEEDED) {
            let Some(bytes) = strings.checked_add(*name).and_then(|at| self.read_short(at, 64))
            else {
                continue;
            };
            let name = bytes.split(|&b| b == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            if ["libasan.so", "libtsan.so", "libhwasan.so", "libclang_rt.asan", "libclang_rt.tsan"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                found.push(name);
            }
        }
        Some(found)
    }

    fn read(&mut self, offset: u64, size: u64) -> Option<Vec<u8>> {
        let bytes = self.read_short(offset, size)?;
        (bytes.len() as u64 == size).then_some(bytes)
    }

    fn read_short(&mut self, offset: u64, size: u64) -> Option<Vec<u8>> {
        if size > MAX_TABLE {
            return None;
        }
        self.file.seek(SeekFrom::Start(offset)).ok()?;
        let mut bytes = vec![0; size as usize];
        let n = read_up_to(&mut self.file, &mut bytes).ok()?;
        bytes.truncate(n);
        Some(bytes)
    }
}

/// A little-endian number of `size` bytes at `offset`.
fn number(bytes: &[u8], offset: usize, size: usize) -> Option<u64> {
    let field = bytes.get(offset..offset.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examine(bytes: &[u8], name: &str) -> Program {
        let path =
            std::env::temp_dir().join(format!("ironverbs-elf-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let program = Program::examine(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        program
    }

    #[test]
    fn this_program_is_dynamic() {
        let program = Program::examine(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(program, Program::default());
    }

    #[test]
    fn scripts_name_their_interpreter() {
        for (text, expected) in [
            ("#!/bin/sh\necho\n", Some("/bin/sh")),
            ("#! /usr/bin/env python3", Some("/usr/bin/env")),
            ("#!\n", None),
            ("echo\n", None),
            ("", None),
        ] {
            let program = examine(text.as_bytes(), "script");
            assert_eq!(program.interpreter.as_deref(), expected.map(Path::new), "{text:?}");
        }
    }

    /// Every prefix of a real program, and programs with damaged headers, are taken calmly.
    #[test]
    fn damage_is_no_panic() {
        let mut image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        image.truncate(4096);
        for len in (0..200).chain([1000, 4096]) {
            examine(&image[..len.min(image.len())], "cut");
        }
        for at in 0..120 {
            let mut damaged = image.clone();
            damaged[at] = 0xff;
            examine(&damaged, "damaged");
        }
    }

    #[test]
    fn other_machines_are_foreign() {
        let mut image = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        image.truncate(4096);
        image[18] = 3;
        assert!(examine(&image, "foreign").is_foreign);
    }
}
