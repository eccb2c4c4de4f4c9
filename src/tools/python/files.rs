//! Files that programs get and leave, as blocks of the protocol.
//!
//! Host to child: `u16 name length, u32 content length, name, content` for each file. Child to
//! host: `u16 name length, u64 size, u32 content length, name, content`; a content length of
//! `u32::MAX` is a file that is not kept. The host does not trust the child: names are shortened,
//! and content above the limit is dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::mdp::OutputFile;

/// A file in a program's directory.
#[derive(Clone, Debug, PartialEq)]
pub struct InputFile {
    /// Path relative to the directory.
    pub name: String,
    pub content: Arc<[u8]>,
}

/// Maximum bytes of a block of files from a child.
pub(super) const MAX_FILES: usize = 64 << 20;

/// Maximum number of files of one result.
const COUNT: usize = 64;

/// Maximum bytes of a file's name.
const NAME: usize = 200;

/// Maximum number of files that a program gets, with their directories: its directory holds 4096.
const GIVEN: usize = 2048;

/// Refuses a name that leads out of the directory.
///
/// # Errors
/// [`Kind::Script`], with the rule.
pub fn check_name(name: &str) -> Result<()> {
    if is_plain(name) && name.len() <= NAME && !name.chars().any(char::is_control) {
        return Ok(());
    }
    let name: String = name.chars().take(80).collect();
    Err(Error::new(Kind::Script, format!("{name:?} can't be the name of a file"))
        .hint("a file has a path inside the program's directory, such as \"data/t.csv\""))
}

/// Whether it is a path of names, separated by single slashes.
fn is_plain(name: &str) -> bool {
    name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Refuses files that can't be in one directory: a file that is also a directory, too many.
/// `names` are sorted, and each was checked by [`check_name`].
///
/// # Errors
/// [`Kind::Script`], with the names.
pub fn check_names(names: &[&str]) -> Result<()> {
    let bad = |why: String| Err(Error::new(Kind::Script, why));
    let mut folders = BTreeSet::new();
    for name in names {
        folders.extend(name.match_indices('/').map(|(at, _)| &name[..at]));
    }
    if let Some(both) = names.iter().find(|name| folders.contains(*name)) {
        return bad(format!("`{both}` is a file, and a directory of another file"));
    }
    let count = names.len() + folders.len();
    if count > GIVEN {
        return bad(format!("{count} files and directories are more than {GIVEN}"));
    }
    Ok(())
}

/// The block of the files of a call.
pub(super) fn encode(files: &[InputFile]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for file in files {
        bytes.extend_from_slice(&(file.name.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(file.content.len() as u32).to_le_bytes());
        bytes.extend_from_slice(file.name.as_bytes());
        bytes.extend_from_slice(&file.content);
    }
    bytes
}

/// The files of a report, with at most `limit` bytes of content; what can't be read is dropped. A
/// program can falsify the report: a name is one that a file of its directory may have, and a size
/// is the size of the content, or at most `disk` bytes.
pub(super) fn decode(block: &[u8], limit: usize, disk: u64) -> Vec<OutputFile> {
    let mut rest = block;
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let (mut files, mut kept) = (Vec::new(), 0);
    while files.len() < COUNT {
        let Some([n0, n1, s @ .., c0, c1, c2, c3]) = take(14) else { break };
        let size = s.try_into().map_or(0, u64::from_le_bytes);
        let length = u32::from_le_bytes([*c0, *c1, *c2, *c3]);
        let Some(name) = take(usize::from(u16::from_le_bytes([*n0, *n1]))) else { break };
        let content = if length == u32::MAX {
            None
        } else {
            let Some(content) = take(length as usize) else { break };
            kept += content.len();
            (kept <= limit).then(|| content.to_vec())
        };
        let size = if length == u32::MAX { size.min(disk) } else { u64::from(length) };
        // Brackets end the mark of a file in the text of a result.
        let shown = |c: char| if c.is_control() || matches!(c, '[' | ']') { '?' } else { c };
        let name: String = String::from_utf8_lossy(name).chars().map(shown).take(NAME).collect();
        if is_plain(&name) {
            files.push(OutputFile::new(name, size, content));
        }
    }
    files
}

/// `[file plot_1.png, 12.3 KiB]` for each file, for the text of a result.
pub(super) fn marks(files: &[OutputFile]) -> String {
    let size = |bytes: u64| match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    };
    let mark = |file: &OutputFile| {
        let lost = if file.has_content() { "" } else { ", too large to keep" };
        format!("[file {}, {}{lost}]", file.name, size(file.size))
    };
    files.iter().map(mark).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn block(name: &str, size: u64, content: Option<&[u8]>) -> Vec<u8> {
        let length = content.map_or(u32::MAX, |content| content.len() as u32);
        let mut bytes = (name.len() as u16).to_le_bytes().to_vec();
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(content.unwrap_or_default());
        bytes
    }

    proptest! {
        #[test]
        fn any_block_of_files_is_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&bytes, 50, 99).iter().all(|file| file.content().is_none_or(|content| content.len() <= 50)));
        }
    }

    #[test]
    fn files_of_a_report_are_limited_and_named_in_the_text() {
        let all = [block("a.txt", 2, Some(b"hi")), block("b\n.bin", 2000, Some(&[0xff; 9])), block("c", 3 << 20, None)]
            .concat();
        let files = decode(&all, 100, 2 << 20);
        assert_eq!(marks(&files), "[file a.txt, 2 B]\n[file b?.bin, 9 B]\n[file c, 2.0 MiB, too large to keep]");
        assert_eq!(files[1].content(), Some(vec![0xff; 9]));
        let files = decode(&all, 5, 0);
        assert_eq!((files[0].content(), files[1].content()), (Some(b"hi".to_vec()), None));
        // A cut block gives the files before the cut.
        assert_eq!(decode(&all[..all.len() - 1], 100, 0).len(), 2);
        // Names that no file of the directory has.
        let forged = ["/etc/passwd", "../x", "a//b", "", "x, 1 B]\n[file y"];
        let forged: Vec<u8> = forged.iter().flat_map(|name| block(name, u64::MAX, Some(b"z"))).collect();
        assert_eq!(marks(&decode(&forged, 100, 0)), "[file x, 1 B???file y, 1 B]");
    }

    #[test]
    fn files_fit_into_one_directory() {
        check_names(&["a", "b/c", "b/d/e", "b2"]).unwrap();
        let error = check_names(&["a", "a-b", "a/b"]).unwrap_err().to_string();
        assert!(error.contains("`a` is a file, and a directory of another file"), "{error}");
        let many: Vec<String> = (0..GIVEN).map(|number| format!("d/{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check_names(&many[1..]).unwrap();
        assert!(check_names(&many).is_err());
    }

    #[test]
    fn names_of_files_stay_inside_the_directory() {
        for name in ["t.csv", "data/t.csv", "a b.txt"] {
            check_name(name).unwrap();
        }
        for name in
            ["", "/etc/passwd", "../x", "a/../b", ".", "a\0b", "a\nb", "a/", "a//b", "a/./b", "./a", &"x".repeat(300)]
        {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
