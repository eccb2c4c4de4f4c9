//! Server-sent events of a response.

use crate::net::Response;

use super::failure::Failure;

/// Maximum bytes of a response that is not streamed, and of a streamed reply.
pub(super) const WHOLE: usize = 64 << 20;

/// Calls `event` with the data of each event, until `event` returns true, the stream ends, or
/// `[DONE]` is read. Gives the number of events. A response that is one JSON object is one event.
pub(super) fn events(
    mut response: Response,
    stop: &dyn Fn() -> bool,
    event: &mut dyn FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<usize, Failure> {
    let kind = response.header("content-type").unwrap_or_default();
    if kind.starts_with("application/json") {
        let bytes = response.bytes(WHOLE, stop).map_err(Failure::during)?;
        event(&bytes)?;
        return Ok(1);
    }
    if kind.starts_with("text/html") {
        return Err(Failure::Foreign("it sends a web page".to_owned()));
    }
    let (mut line, mut count, mut size) = (Vec::new(), 0, 0_usize);
    let mut first = true;
    while let Some(bytes) = response.next(stop).map_err(Failure::during)? {
        for byte in bytes {
            if byte != b'\n' {
                if line.len() == WHOLE {
                    return Err(Failure::Foreign(format!("it sent a line of more than {WHOLE} bytes")));
                }
                line.push(byte);
                continue;
            }
            // A byte order mark may precede the first line.
            let own = line.strip_prefix(b"\xEF\xBB\xBF".as_slice()).filter(|_| first).unwrap_or(&line);
            first = false;
            if let Some(data) = own.trim_ascii().strip_prefix(b"data:".as_slice()) {
                let data = data.trim_ascii();
                size += data.len();
                if size > WHOLE {
                    return Err(Failure::Foreign(format!("its reply has more than {WHOLE} bytes and does not end")));
                }
                if data == b"[DONE]".as_slice() {
                    return Ok(count.max(1));
                }
                count += 1;
                if event(data)? {
                    return Ok(count);
                }
            }
            line.clear();
        }
    }
    if count == 0 && !line.starts_with(b"data:") {
        return Err(Failure::Foreign("there is no event in what it streams".to_owned()));
    }
    Ok(count)
}
