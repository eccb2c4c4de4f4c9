//! Server-sent events of a response, as JSON.
//!
//! The format is defined in the HTML standard (section 9.2). Servers that leave out the blank line
//! between two events are read too, as is one that answers with a single JSON object.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::failure::ServerFailure;
use crate::json;
use crate::net::Response;

/// Maximum bytes of an event, and of a response that is not streamed.
pub(super) const EVENT: usize = 8 << 20;
/// Maximum bytes of a streamed response.
const STREAM: usize = 64 << 20;

/// What an event is to the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventPart {
    /// It keeps the connection open.
    Nothing,
    Piece,
    /// The reply is complete.
    End,
}

/// Receives the JSON of an event.
pub(super) type OnEvent<'a> = dyn FnMut(&Value) -> Result<EventPart, ServerFailure> + 'a;

/// Calls `event` with the JSON of each event until the end of the reply: [`EventPart::End`],
/// `[DONE]`, or the end of the stream. A response that is one JSON object is one event. `silence`:
/// the longest wait for the next piece of the reply; comments and events such as `ping`, which keep
/// a connection open, are not pieces.
pub(super) fn events(
    mut response: Response,
    silence: Duration,
    stop: &dyn Fn() -> bool,
    event: &mut OnEvent<'_>,
) -> Result<(), ServerFailure> {
    let kind = response.header("content-type").unwrap_or_default().to_lowercase();
    if kind.starts_with("application/json") {
        let bytes = response.bytes(EVENT, silence, stop).map_err(ServerFailure::during)?;
        event(&parse(&bytes)?)?;
        return Ok(());
    }
    if kind.starts_with("text/html") {
        return Err(ServerFailure::Foreign("it sends a web page".to_owned()));
    }
    let mut reader =
        StreamReader { event, line: Vec::new(), data: Vec::new(), size: 0, count: 0, pieces: 0, after_cr: false };
    let (mut last, mut seen, mut total) = (Instant::now(), 0, 0_usize);
    while let Some(bytes) = response.next(stop).map_err(ServerFailure::during)? {
        total += bytes.len();
        if total > STREAM {
            let limit = STREAM >> 20;
            return Err(ServerFailure::Foreign(format!("its reply has more than {limit} MiB and does not end")));
        }
        if reader.add(&bytes)? {
            return Ok(());
        }
        if reader.pieces > seen {
            (last, seen) = (Instant::now(), reader.pieces);
        } else if last.elapsed() > silence {
            let seconds = silence.as_secs_f64();
            let why = format!("it kept the connection open, and sent nothing of the reply for {seconds} s");
            return Err(ServerFailure::BrokeOff(Some(why)));
        }
    }
    // The last event may lack its blank line, and the end of its line.
    let rest = std::mem::take(&mut reader.line);
    let data = rest.strip_prefix(b"data:".as_slice()).map(<[u8]>::trim_ascii);
    let is_whole = data.is_some_and(|data| data == b"[DONE]" || json::read_foreign(data).is_ok());
    let ended = is_whole && reader.line(&rest)? || reader.line(b"")?;
    if !ended && reader.count == 0 && data.is_none() {
        return Err(ServerFailure::Foreign("there is no event in what it streams".to_owned()));
    }
    if !ended && data.is_some() && !is_whole {
        // Inside an event.
        return Err(ServerFailure::BrokeOff(None));
    }
    Ok(())
}

fn parse(text: &[u8]) -> Result<Value, ServerFailure> {
    json::read_foreign(text).map_err(|error| {
        if error.is_eof() {
            ServerFailure::BrokeOff(Some("what it sent is cut short".to_owned()))
        } else {
            ServerFailure::Foreign(format!("what it sends is not JSON: {error}"))
        }
    })
}

/// The state between two pieces of a stream.
struct StreamReader<'a, 'b> {
    event: &'a mut OnEvent<'b>,
    /// The beginning of a line.
    line: Vec<u8>,
    /// The data lines of the event so far.
    data: Vec<Vec<u8>>,
    /// Bytes in `data`.
    size: usize,
    /// Number of events, and of those with a piece of the reply.
    count: usize,
    pieces: usize,
    /// The last byte was a carriage return, which may be half of a line's end.
    after_cr: bool,
}

impl StreamReader<'_, '_> {
    /// Reads a piece of the stream; true at the end of the reply.
    fn add(&mut self, bytes: &[u8]) -> Result<bool, ServerFailure> {
        for &byte in bytes {
            let ends = matches!(byte, b'\n' | b'\r');
            if byte == b'\n' && std::mem::take(&mut self.after_cr) {
                continue;
            }
            self.after_cr = byte == b'\r';
            if !ends {
                if self.line.len() + self.size == EVENT {
                    return Err(ServerFailure::Foreign(format!("it sent an event of more than {} MiB", EVENT >> 20)));
                }
                self.line.push(byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if self.line(&line)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads a line; true at the end of the reply.
    fn line(&mut self, line: &[u8]) -> Result<bool, ServerFailure> {
        // A byte order mark may precede the first line.
        let line = line.strip_prefix(b"\xEF\xBB\xBF".as_slice()).unwrap_or(line).trim_ascii();
        if line.is_empty() {
            return self.dispatch();
        }
        if let Some(data) = line.strip_prefix(b"data:".as_slice()) {
            self.size += data.len();
            self.data.push(data.trim_ascii().to_vec());
        }
        // Comments, and the fields `event`, `id` and `retry`: the JSON has its type.
        Ok(false)
    }

    /// The end of an event.
    fn dispatch(&mut self) -> Result<bool, ServerFailure> {
        self.size = 0;
        let lines = std::mem::take(&mut self.data);
        let whole = lines.join(&b'\n');
        // Lines that are JSON each are events without a blank line between them.
        if lines.len() == 1 || json::read_foreign(&whole).is_ok() {
            return self.read_event(&whole);
        }
        for line in lines {
            if self.read_event(&line)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_event(&mut self, data: &[u8]) -> Result<bool, ServerFailure> {
        match data {
            b"" => Ok(false),
            b"[DONE]" => Ok(true),
            data => {
                self.count += 1;
                let part = (self.event)(&parse(data)?)?;
                self.pieces += usize::from(part == EventPart::Piece);
                Ok(part == EventPart::End)
            }
        }
    }
}
