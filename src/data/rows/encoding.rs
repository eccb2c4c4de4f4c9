//! Text that readers would accept without a word: encodings other than UTF-8, and quotes of CSV
//! that are not closed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Characters before a byte that an error shows.
const SHOWN: usize = 20;

/// Refuses a file in UTF-16 or UTF-32, by its first bytes.
///
/// # Errors
/// [`Kind::Data`], with the command that converts it.
pub(super) fn check_start(path: &Path, file: &File) -> Result<()> {
    let mut start = [b' '; 2];
    let read = file.read_at(&mut start, 0);
    read.map_err(|error| Error::io(Kind::Data, "read the dataset", path, &error))?;
    // A byte order mark, or the zero byte of an ASCII letter.
    if !matches!(start, [0xFF, 0xFE] | [0xFE, 0xFF] | [0, _] | [_, 0]) {
        return Ok(());
    }
    Err(Error::new(Kind::Data, "the file is not UTF-8: it begins as UTF-16 does")
        .at_path(path)
        .hint(convert("UTF-16", path)))
}

/// The bytes as text. `line` is the number of their first line in the file.
///
/// # Errors
/// [`Kind::Data`] with the line of the first byte that is not UTF-8.
pub(crate) fn text<'a>(bytes: &'a [u8], path: &Path, line: u64) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
        let on_line = before.rsplit('\n').next().unwrap_or_default();
        let skipped = on_line.chars().count().saturating_sub(SHOWN);
        let shown: String = on_line.chars().skip(skipped).collect();
        let byte = bytes.get(error.valid_up_to()).copied().unwrap_or_default();
        let after = if shown.is_empty() { String::new() } else { format!(" after `{shown}`") };
        Error::new(Kind::Data, format!("the text is not UTF-8: byte 0x{byte:02X}{after}"))
            .at(format!("{}:{}", path.display(), line + lines(before.as_bytes())))
            .hint(format!("if it is Latin-1: {}", convert("LATIN1", path)))
    })
}

fn convert(from: &str, path: &Path) -> String {
    format!("`iconv -f {from} -t UTF-8 {} > NEW` converts it", path.display())
}

/// Refuses a record of CSV in which a quote is not closed. `line` is the number of the record's
/// first line in the file.
///
/// # Errors
/// [`Kind::Data`] with the line of the quote.
pub(super) fn check_quotes(record: &[u8], delimiter: u8, path: &Path, line: u64) -> Result<()> {
    let Some((open, problem)) = broken_quote(record, delimiter) else { return Ok(()) };
    let message = match problem {
        Broken::NotClosed => "a quote is never closed",
        Broken::TextBehind => "a quoted cell of several lines has text behind its closing quote",
    };
    Err(Error::new(Kind::Data, message)
        .at(format!("{}:{}", path.display(), line + lines(&record[..open])))
        .hint("a quote inside of a quoted cell is written twice: \"\""))
}

enum Broken {
    NotClosed,
    /// The quote that closes the cell is probably the opening one of another.
    TextBehind,
}

/// The offset of the first quote that opens a cell and is not closed where the cell ends.
fn broken_quote(record: &[u8], delimiter: u8) -> Option<(usize, Broken)> {
    let mut at = if record.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
    let mut starts_cell = true;
    while let Some(byte) = record.get(at) {
        if !(starts_cell && *byte == b'"') {
            starts_cell = *byte == delimiter || matches!(byte, b'\r' | b'\n');
            at += 1;
            continue;
        }
        let open = at;
        at += 1;
        loop {
            let Some(quote) = record[at..].iter().position(|byte| *byte == b'"') else {
                return Some((open, Broken::NotClosed));
            };
            at += quote + 1;
            if record.get(at) != Some(&b'"') {
                break;
            }
            at += 1;
        }
        let ends = record.get(at).is_none_or(|byte| *byte == delimiter || matches!(byte, b'\r' | b'\n'));
        if !ends && record[open..at].contains(&b'\n') {
            return Some((open, Broken::TextBehind));
        }
        starts_cell = false;
    }
    None
}

fn lines(bytes: &[u8]) -> u64 {
    bytes.split(|byte| *byte == b'\n').count() as u64 - 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use serde_json::Value as Json;

    use crate::data::rows::Dataset;

    /// The rows of a file with this name and content, or the message and the line of the error.
    fn rows(name: &str, bytes: &[u8]) -> Result<Vec<Json>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let read = || -> crate::error::Result<Vec<Json>> {
            let data = Dataset::open(std::slice::from_ref(&path), None, &BTreeMap::new())?;
            (0..data.len()).map(|index| data.row(index)).collect()
        };
        read().map_err(|error| {
            let location = error.place.unwrap_or_default();
            let line = location.rsplit_once(name).map_or("", |(_, line)| line);
            format!("{name}{line} {}", error.message)
        })
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        use std::io::Write;
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_with_its_line() {
        for (name, bytes, error) in [
            ("a.csv", &b"p,a\nx,1\ncaf\xe9 au lait,2\n"[..], "a.csv:3 the text is not UTF-8: byte 0xE9 after `caf`"),
            ("a.csv", b"p,a\n\"x\n\n\xa35\",1\n", "a.csv:4 the text is not UTF-8: byte 0xA3"),
            ("a.csv", b"p,caf\xe9\nx,1\n", "a.csv:1 the text is not UTF-8: byte 0xE9 after `p,caf`"),
            // The two cells together would be one letter.
            ("a.csv", b"p,a\r\nx\xc3,\xa9\r\n", "a.csv:2 the text is not UTF-8: byte 0xC3 after `x`"),
            ("a.tsv", b"p\ta\n\n1\t\xff\n", "a.tsv:3 the text is not UTF-8: byte 0xFF after `1\t`"),
            (
                "a.jsonl",
                b"{\"p\": 1}\n{\"p\": \"caf\xe9\"}\n",
                "a.jsonl:2 the text is not UTF-8: byte 0xE9 after `{\"p\": \"caf`",
            ),
            (
                "a.json",
                b"[{\"p\": 1},\n{\"p\": \"\xe9\"}]",
                "a.json:2 the text is not UTF-8: byte 0xE9 after `{\"p\": \"`",
            ),
        ] {
            assert_eq!(rows(name, bytes).unwrap_err(), error);
            assert_eq!(
                rows(&format!("{name}.gz"), &gzip(bytes)).unwrap_err(),
                error.replace(name, &format!("{name}.gz"))
            );
        }
        for name in ["a.csv", "a.jsonl", "a.json"] {
            for little in [true, false] {
                for mark in ["", "\u{feff}"] {
                    let units = format!("{mark}{{\"a\": 1}}\n").encode_utf16().collect::<Vec<_>>();
                    let bytes: Vec<u8> = units
                        .iter()
                        .flat_map(|unit| if little { unit.to_le_bytes() } else { unit.to_be_bytes() })
                        .collect();
                    let error = rows(name, &bytes).unwrap_err();
                    assert_eq!(error, format!("{name} the file is not UTF-8: it begins as UTF-16 does"));
                }
            }
        }
        assert_eq!(rows("a.csv", "\u{feff}p\ncafé\n".as_bytes()).unwrap(), [serde_json::json!({ "p": "café" })]);
    }

    #[test]
    fn a_quote_that_is_not_closed_is_refused_with_its_line() {
        for (text, line, why) in [
            ("p,a\n1,\"x\n2,y\n3,z\n", 2, "a quote is never closed"),
            ("p,a\r\n1,x\r\n\r\n2,\"y\r\n3,z", 4, "a quote is never closed"),
            ("p,a\n1,x\n2,\"", 3, "a quote is never closed"),
            ("p,\"a\n1,2\n", 1, "a quote is never closed"),
            ("p,a\n\"b\nc\",\"\"\"x\n2,\"\"y\n", 3, "a quote is never closed"),
            // The next quote closes it.
            ("p,a\n1,\"x\n2,\"y\"\n3,z\n", 2, "a quoted cell of several lines has text behind its closing quote"),
        ] {
            assert_eq!(rows("a.csv", text.as_bytes()).unwrap_err(), format!("a.csv:{line} {why}"), "{text}");
        }
        let fine = "p,a\n\"x, \"\"y\"\"\nz\",\"\"\n 5\" wide,\"a\"b\n\"\",\"end\nof\"\"file\"\"\"";
        let cells: Vec<String> =
            rows("a.csv", fine.as_bytes()).unwrap().iter().map(|row| format!("{}|{}", row["p"], row["a"])).collect();
        assert_eq!(cells, [r#""x, \"y\"\nz"|"""#, r#"" 5\" wide"|"ab""#, r#"""|"end\nof\"file\"""#]);
    }

    #[test]
    fn whole_numbers_of_more_than_64_bits_keep_their_digits() {
        let digits = "12345678901234567890123";
        let row = serde_json::json!({ "a": digits, "b": ["-9223372036854775809", u64::MAX] });
        let text = format!("{{\"a\": {digits}, \"b\": [-9223372036854775809, 18446744073709551615]}}");
        // A JSON file with one object may have its rows in `data`.
        let within = format!("{{\"version\": \"1\", \"data\": [\n{text}\n]}}");
        for (name, text) in
            [("a.jsonl", text.clone()), ("a.json", format!("[{text}]")), ("b.json", text), ("c.json", within)]
        {
            assert_eq!(rows(name, text.as_bytes()).unwrap(), std::slice::from_ref(&row));
        }
    }
}
